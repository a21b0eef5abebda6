"""The checks, a row each: what is read, by whom, how it is judged. `python -m slurm_rl plan` names those of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_rl.plan.job import JobPlan
from slurm_rl.plugins.health.gate import amd, disks, host, nvidia
from slurm_rl.plugins.health.gate.verdict import Verdict, Wanted

Parse = Callable[[str, int, Wanted], Verdict]
Compare = Callable[[Mapping[str, Verdict]], dict[str, Verdict]]
_DAY_S = 86400.0


@dataclass(frozen=True)
class Check:
    """Something that is asked of each node."""

    name: str
    vendor: str
    """nvidia or amd; "" for all."""
    source: str
    """What is read: its name in SOURCES, gate/script.py; "" for the tests that nodes make together: gate/pairs.py and
    gate/fabric.py."""
    cost_s: float
    """On a node, estimated for eight GPUs; of a source that others read already: 0."""
    parse: Parse | None = None
    """Pure: text and exit status of the source, and what the run needs."""
    compare: Compare | None = None
    """Pure: the verdicts on all nodes -> better ones, since what most have is right."""
    level: str = "quick"
    holds_s: float = 7 * _DAY_S
    """How long a bad node is remembered for it, if it is not booted before."""
    min_nodes: int = 1


TABLE: Final[tuple[Check, ...]] = (
    Check("files", "", "files", 0.1, host.read_files, holds_s=_DAY_S),
    Check("start", "", "start", 0.1, host.read_start, host.compare_facts, holds_s=_DAY_S),
    Check("gpus", "nvidia", "nvidia-smi", 5.0, nvidia.read_gpus, host.compare_facts),
    Check("recovery", "nvidia", "nvidia-smi", 0.0, nvidia.read_recovery),
    Check("ecc", "nvidia", "nvidia-smi", 0.0, nvidia.read_ecc),
    Check("clocks", "nvidia", "nvidia-smi", 0.0, nvidia.read_clocks),
    Check("xid", "nvidia", "kernel", 0.2, nvidia.read_xid),
    Check("links", "nvidia", "nvlink", 0.5, nvidia.read_links, host.compare_facts),
    Check("gpus", "amd", "rocm-smi", 3.0, amd.read_gpus, host.compare_facts),
    Check("ras", "amd", "ras", 1.0, amd.read_ras),
    Check("ports", "", "ports", 0.1, host.read_ports, host.compare_ports, min_nodes=2),
    Check("disks", "", "disks", 0.5, disks.read_disks, disks.compare_disks, holds_s=_DAY_S),
    Check("pairs", "", "", 1.5, holds_s=_DAY_S),
    Check("dcgm", "nvidia", "dcgm", 10.0, nvidia.read_dcgm, level="full"),
    Check("matmul", "", "", 20.0, level="full", min_nodes=2),
    Check("fabric", "", "", 20.0, level="full", holds_s=_DAY_S, min_nodes=2),
)


def choose_checks(plan: JobPlan, table: Sequence[Check] = TABLE) -> tuple[list[Check], list[Check]]:
    """The checks that the run's nodes are asked, and those that its budget leaves out."""
    asked: list[Check] = []
    left_out: list[Check] = []
    spent = 0.0
    too_dear: set[str] = set()
    for check in table:
        is_ours = check.vendor in ("", plan.accelerator) and plan.num_nodes >= check.min_nodes
        if plan.preflight.level == "off" or not is_ours or (check.level == "full" and plan.preflight.level != "full"):
            continue
        fits = check.level == "full" or spent + check.cost_s <= plan.preflight.budget_s
        # The first row of a source has what reading it costs.
        fits = fits and (not check.source or check.source not in too_dear)
        too_dear |= set() if fits else {check.source}
        (asked if fits else left_out).append(check)
        spent += check.cost_s if fits else 0.0
    return asked, left_out
