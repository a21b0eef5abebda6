"""The table of health checks, used by preflight and doctor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_rl.plan.job import JobPlan
from slurm_rl.plugins.health import amd, host, nvidia
from slurm_rl.plugins.health.verdict import NodeSpec, Verdict

Parse = Callable[[str, int, NodeSpec], Verdict]
Compare = Callable[[Mapping[str, Verdict]], dict[str, Verdict]]
_DAY_S = 86400.0


@dataclass(frozen=True)
class Check:
    """One health check."""

    name: str
    vendor: str
    """nvidia or amd; "" for all."""
    source: str
    """Source in script.py; "" for the measurements between nodes (pairs, matmul, fabric)."""
    cost_s: float
    """Estimated seconds on a node with eight GPUs; 0 if an earlier check reads the same source."""
    parse: Parse | None = None
    compare: Compare | None = None
    """Replaces the verdicts of all nodes by a comparison between them."""
    level: str = "quick"
    holds_s: float = 7 * _DAY_S
    """Seconds for which a bad node is remembered, unless it reboots first."""
    min_nodes: int = 1
    action: str = "drain the node; the GPU needs a reset or a repair (see dmesg there)"
    """Advice of `doctor` after a bad verdict."""


_FABRIC = (
    "run again with cluster.env.NCCL_DEBUG=INFO; see ports and links above, cluster.network_interface, /dev/shm of the "
    "container, and firewalls between nodes"
)
TABLE: Final[tuple[Check, ...]] = (
    Check(
        *("files", "", "files", 0.1, host.check_files),
        holds_s=_DAY_S,
        action="choose another cluster.run_root or cluster.tmp_root; for /dev/shm set container.shm_size_gb or a "
        "smaller ray.object_store_gb",
    ),
    Check(
        *("start", "", "start", 0.1, host.check_start, host.compare_facts),
        holds_s=_DAY_S,
        action="raise the limits: LimitMEMLOCK=infinity in slurmd's unit, PropagateResourceLimitsExcept=MEMLOCK in "
        "slurm.conf, --ulimit=memlock=-1 in container.extra_args",
    ),
    Check(
        *("gpus", "nvidia", "nvidia-smi", 5.0, nvidia.check_gpus, host.compare_facts),
        action="correct cluster.gpus_per_node and cluster.gpu_mem_gb, or see dmesg on the node (Xid)",
    ),
    Check("recovery", "nvidia", "nvidia-smi", 0.0, nvidia.check_recovery),
    Check("ecc", "nvidia", "nvidia-smi", 0.0, nvidia.check_ecc),
    Check("clocks", "nvidia", "nvidia-smi", 0.0, nvidia.check_clocks),
    Check("xid", "nvidia", "kernel", 0.2, nvidia.check_xid),
    Check("links", "nvidia", "nvlink", 0.5, nvidia.check_links, host.compare_facts),
    Check(
        *("gpus", "amd", "rocm-smi", 3.0, amd.check_gpus, host.compare_facts),
        action="correct cluster.gpus_per_node and cluster.gpu_mem_gb, or see dmesg on the node (amdgpu)",
    ),
    Check("ras", "amd", "ras", 1.0, amd.check_ras),
    Check(
        *("ports", "", "ports", 0.1, host.check_ports, host.compare_ports),
        min_nodes=2,
        action="see ibstat on the node; in a container add --device=/dev/infiniband to container.extra_args",
    ),
    Check(
        *("disks", "", "disks", 0.5, host.check_disks, host.compare_disks),
        holds_s=_DAY_S,
        action="see the node's disk and the server of cluster.run_root",
    ),
    Check("pairs", "", "", 1.5, holds_s=_DAY_S),
    Check("dcgm", "nvidia", "dcgm", 10.0, nvidia.check_dcgm, level="full"),
    Check(
        *("matmul", "", "", 20.0),
        level="full",
        min_nodes=2,
        action="install the package that is missing; if a GPU fails, drain the node (see dmesg there)",
    ),
    Check("fabric", "", "", 20.0, level="full", holds_s=_DAY_S, min_nodes=2, action=_FABRIC),
)


def choose_checks(plan: JobPlan, table: Sequence[Check] = TABLE) -> tuple[list[Check], list[Check]]:
    """Return the checks of the run's preflight, and those that exceed its budget."""
    chosen: list[Check] = []
    skipped: list[Check] = []
    spent = 0.0
    for check in table:
        applies = check.vendor in ("", plan.accelerator) and plan.num_nodes >= check.min_nodes
        if plan.preflight.level == "off" or not applies or (check.level == "full" and plan.preflight.level != "full"):
            continue
        fits = check.level == "full" or spent + check.cost_s <= plan.preflight.budget_s
        # The first check of a source carries the cost of reading it.
        fits = fits and not (check.source and check.source in {other.source for other in skipped})
        (chosen if fits else skipped).append(check)
        spent += check.cost_s if fits else 0.0
    return chosen, skipped
