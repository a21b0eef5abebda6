"""The table of health checks, used by preflight and doctor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from slurm_rl.plan.job import JobPlan
from slurm_rl.plugins.health import amd, host, nvidia, probes
from slurm_rl.plugins.health.verdict import NodeSpec, Verdict

Parse = Callable[[str, int, NodeSpec], Verdict]
Compare = Callable[[Mapping[str, Verdict]], dict[str, Verdict]]
_DAY_S = 86400.0


@dataclass(frozen=True)
class Check:
    """One health check."""

    name: str
    vendor: str = ""
    """nvidia or amd; "" for all."""
    source: str = ""
    """Source in script.py; "" for the fabric measurement (matmul, fabric)."""
    parse: Parse | None = None
    compare: Compare | None = None
    """Replaces the verdicts of all nodes by a comparison between them."""
    level: Literal["quick", "full", "doctor"] = "quick"
    """quick: in each preflight, and by doctor. full: only at preflight.level=full, and by doctor. doctor: only by
    doctor, in the run's image."""
    holds_s: float = 7 * _DAY_S
    """Seconds for which a bad node is remembered, unless it reboots first."""
    action: str = "drain the node; the GPU needs a reset or a repair (see dmesg there)"
    """Advice of `doctor` after a bad verdict."""


_FABRIC = (
    "run again with cluster.env.NCCL_DEBUG=INFO; see ibstat and dmesg on the node, cluster.network_interface, /dev/shm "
    "of the container, --device=/dev/infiniband in container.extra_args, and firewalls between nodes"
)
_PROBES = {
    "versions": "install the expected versions, or use another image",
    "masks": "see gres.conf and ConstrainDevices in cgroup.conf",
    "tmp_root": "set cluster.tmp_root to a short path on a node-local disk",
    "vllm": "rebuild the environment from its lock file; the build must match the accelerator",
}
"""Check of probes.py -> advice."""
_GPUS = "correct cluster.gpus_per_node and cluster.gpu_mem_gb, or see dmesg on the node"
TABLE: Final[tuple[Check, ...]] = (
    Check(
        *("files", "", "files", host.check_files),
        holds_s=_DAY_S,
        action="choose another cluster.run_root or cluster.tmp_root; for /dev/shm set container.shm_size_gb or a "
        "smaller ray.object_store_gb",
    ),
    Check(
        *("start", "", "start", host.check_start, host.compare_facts),
        holds_s=_DAY_S,
        action="raise the limits: LimitMEMLOCK=infinity in slurmd's unit, PropagateResourceLimitsExcept=MEMLOCK in "
        "slurm.conf, --ulimit=memlock=-1 in container.extra_args",
    ),
    Check("gpus", "nvidia", "nvidia-smi", nvidia.check_gpus, host.compare_facts, action=_GPUS),
    Check("ecc", "nvidia", "nvidia-smi", nvidia.check_ecc),
    Check("clocks", "nvidia", "nvidia-smi", nvidia.check_clocks),
    Check("gpus", "amd", "rocm-smi", amd.check_gpus, host.compare_facts, action=_GPUS),
    Check("ecc", "amd", "ras", amd.check_ecc),
    Check(
        *("disks", "", "disks", host.check_disks, host.compare_disks),
        holds_s=_DAY_S,
        action="see the node's disk and the server of cluster.run_root",
    ),
    *(Check(name, "", name, probes.parse, level="doctor", action=action) for name, action in _PROBES.items()),
    Check(
        "matmul", level="full", action="install the package that is missing; if a GPU fails, drain the node (see dmesg)"
    ),
    Check("fabric", level="full", holds_s=_DAY_S, action=_FABRIC),
)


def choose_checks(plan: JobPlan, level: str) -> list[Check]:
    """Return the checks of a level of the preflight, or of `doctor`, on the nodes of the plan."""
    levels = {"off": (), "quick": ("quick",), "full": ("quick", "full"), "doctor": ("quick", "full", "doctor")}[level]
    return [check for check in TABLE if check.vendor in ("", plan.accelerator) and check.level in levels]
