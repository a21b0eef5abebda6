"""Config of the node checks before an attempt."""

from typing import Annotated, Final, Literal

from pydantic import Field

from slurm_rl.config.section import Fraction, Section, one_of

CHECKS: Final = ("files", "start", "gpus", "ecc", "clocks", "disks", "matmul", "fabric")
"""Names of the checks; plugins/health/table.py implements them."""
CheckName = Annotated[str, one_of(CHECKS)]
Policy = Literal["exclude", "warn", "refuse"]


class PreflightConfig(Section):
    """Checks of the nodes of a Slurm job before each attempt; other launchers have none."""

    level: Literal["quick", "full", "off"] = "quick"
    """quick: seconds, with the host's tools. full: also matmul and all-reduce benchmarks in the run's image (40 s).
    off: no checks."""
    on_failure: dict[CheckName, Policy] = Field(default={})
    """Action if a check fails on a node: exclude (default) leaves the node out, also after a requeue; warn reports it;
    refuse ends the run. +preflight.on_failure.ecc=warn."""
    max_excluded_share: Fraction = 0.1
    """Largest share of the partition's nodes that a run may exclude (at least one node)."""
