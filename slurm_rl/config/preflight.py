"""What nodes are asked before an attempt, and what follows from their answers."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from slurm_rl.config.section import Fraction, PositiveFloat, Section, one_of

CHECKS: Final[tuple[str, ...]] = (
    *("files", "start", "gpus", "recovery", "ecc", "clocks", "xid", "links", "ras", "ports", "disks", "pairs"),
    *("dcgm", "matmul", "fabric"),
)
"""Names of the checks; what each reads is in plugins/health/table.py."""
CheckName = Annotated[str, one_of(CHECKS)]
Policy = Literal["exclude", "warn", "refuse"]


class PreflightConfig(Section):
    """The checks of all nodes of a Slurm job before each attempt; other launchers have none."""

    level: Literal["quick", "full", "off"] = "quick"
    """quick: seconds, with what the host has; full: also dcgmi's short diagnosis, some 10 s, and, in the run's image,
    how fast nodes multiply, and reduce together, some 40 s once a day and node; off: nothing is asked."""
    policy: dict[CheckName, Policy] = Field(default={})
    """What a check that finds a node bad leads to: exclude (default) leaves the node out, also over requeues; warn only
    tells it; refuse ends the run. +preflight.policy.xid=warn."""
    budget_s: PositiveFloat = 15.0
    """Seconds that checks of level quick may take on a node by the table's own estimate; those beyond are left out."""
    max_excluded_share: Fraction = 0.1
    """Of the partition's nodes that a run keeps out at most, one at the least, so that a wrong check cannot eat the
    cluster."""
