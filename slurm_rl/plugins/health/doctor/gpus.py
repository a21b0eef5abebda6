"""The driver, the devices, and which of them this node's processes may use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from slurm_rl.errors import BringUpError
from slurm_rl.node.environment import read_device_uuids
from slurm_rl.node.image_report import collect_report
from slurm_rl.plan.accelerator import AcceleratorKind
from slurm_rl.plan.visibility import MASK_VARIABLES, gpu_names, normalise_gpu_visibility
from slurm_rl.plugins.health.doctor.finding import Finding, Question, no_gpu
from slurm_rl.plugins.health.doctor.smi import Gpu, parse_driver, parse_nvidia_smi, parse_rocm_smi

TOOLS: dict[AcceleratorKind, list[str]] = {
    "nvidia": ["nvidia-smi", "-q"],
    "amd": ["rocm-smi", "-a", "--showmeminfo", "vram", "--json"],
}
_SHOWN = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"),
)
# A preset says 80, the driver 79.6 GiB, of which ECC may take a part.
SAME_MEMORY = 0.95
# What a driver keeps for itself, of a GPU that nobody uses.
_IN_USE = 0.05
_TOOL_S = 25


def find_accelerator(dev: Path = Path("/dev")) -> tuple[AcceleratorKind, int]:
    """What this machine has, and how many GPUs."""
    if found := [path for path in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]:
        return "nvidia", len(found)
    if (dev / "kfd").exists():
        return "amd", max(1, len(read_device_uuids()))
    return "cpu", 0


def look_at_gpus(question: Question) -> list[Finding]:
    """`driver` and `devices`."""
    kind = question.plan.accelerator
    if kind == "cpu":
        return [no_gpu("driver"), no_gpu("devices")]
    tool = TOOLS[kind]
    loaded = collect_report()["versions"]["nvidia driver" if kind == "nvidia" else "amdgpu driver"]
    if shutil.which(tool[0]) is None:
        seen = f"{loaded}, and no {tool[0]} here to ask" if loaded else f"none loaded, and no {tool[0]}"
        action = "lsmod on the node; in a container: the vendor's toolkit or hook must bring it in"
        driver = Finding("driver", "ok" if loaded else "wrong", seen, "loaded", "" if loaded else action)
        return [driver, Finding("devices", "unseen", f"{tool[0]} is not here; torch says what it sees")]
    try:
        done = subprocess.run(tool, capture_output=True, text=True, errors="replace", timeout=_TOOL_S)
    except subprocess.TimeoutExpired:
        action = "a GPU of this node hangs: have the node drained and rebooted"
        return [Finding("driver", "wrong", f"{tool[0]} does not answer within {_TOOL_S} s", "an answer", action)]
    gpus = parse_nvidia_smi(done.stdout) if kind == "nvidia" else parse_rocm_smi(done.stdout)
    if done.returncode != 0 or not gpus:
        seen = " ".join(f"{done.stdout} {done.stderr}".split())[-300:] or f"exit status {done.returncode}, no word"
        action = "dmesg on the node (Xid, amdgpu); a GPU that fell off the bus needs a reboot"
        return [Finding("driver", "wrong", f"{tool[0]}: {seen}", "it answers", action)]
    driver = Finding("driver", "ok", str(parse_driver(done.stdout) or loaded or "it answers"), "it answers")
    return [driver, judge_devices(question, gpus)]


def judge_devices(question: Question, gpus: list[Gpu]) -> Finding:
    """Enough of them, of the preset's size, whole, and nobody else at work on them.

    The tools show all GPUs of the node that its cgroup lets this task see: of others' the rest says nothing.
    """
    plan, least = question.plan, (question.gpu_mem_gb or 0) * 1e9 * SAME_MEMORY
    mine = choose_mine(gpus, plan.accelerator, plan.gpus_per_node, os.environ)
    names = sorted({gpu.name for gpu in mine})
    sizes = sorted({f"{gpu.memory_bytes / 1e9:.0f} GB" for gpu in mine if gpu.memory_bytes})
    seen = f"{len(mine)} x {', '.join([*names, *sizes])}"
    should = f">= {plan.gpus_per_node}" + (f" of {question.gpu_mem_gb:g} GB" if question.gpu_mem_gb else "")
    for gpu in mine:
        place = f"GPU {gpus.index(gpu)}"
        if gpu.trouble:
            return Finding("devices", "wrong", f"{place}: {gpu.trouble}", "whole", "drain the node and reset the GPU")
        if gpu.memory_bytes and gpu.memory_bytes < least:
            action = f"set cluster.gpu_mem_gb={gpu.memory_bytes / 1e9:.0f}, or ask for another type of GPU"
            return Finding("devices", "wrong", seen, should, action)
        if gpu.is_split and plan.gpus_per_node > 1:
            action = "NCCL needs whole GPUs: turn MIG off, or take one slice: cluster.gpus_per_node=1"
            return Finding("devices", "wrong", f"{seen}; {place} is cut into slices (MIG)", should, action)
        if gpu.memory_bytes and (gpu.used_bytes or 0) > _IN_USE * gpu.memory_bytes:
            used = f"{(gpu.used_bytes or 0) / 1e9:.1f} GB of {place} are in use already"
            action = "see whose process it is (nvidia-smi, rocm-smi --showpids), and end it"
            return Finding("devices", "wrong", f"{seen}; {used}", "unused", action)
    if len(mine) < plan.gpus_per_node:
        return Finding("devices", "wrong", seen, should, f"set cluster.gpus_per_node={len(mine)}, or see dmesg")
    return Finding("devices", "ok", seen, should)


def choose_mine(gpus: list[Gpu], kind: AcceleratorKind, count: int, env: Mapping[str, str]) -> list[Gpu]:
    """Those of a normalised mask; a cgroup may show fewer than the mask's numbers count, and then shows ours alone."""
    mask = env.get(MASK_VARIABLES[kind])
    if mask is None:
        return gpus
    chosen = []
    for name in gpu_names(env, kind, count):
        place = int(name) if name.isdigit() else None
        if place is not None and place >= len(gpus):
            return gpus
        # As CUDA takes them, a UUID may be cut short.
        chosen += [gpus[place]] if place is not None else [gpu for gpu in gpus if gpu.uuid.startswith(name)]
    return chosen or gpus


def look_at_masks(question: Question) -> list[Finding]:
    """What Slurm granted, and the one mask that a run's processes get of it; see plan/visibility.py."""
    plan = question.plan
    if not question.on_gpus:
        return [no_gpu("masks")]
    shown = " ".join(f"{name}={os.environ[name]}" for name in _SHOWN if name in os.environ) or "no mask set"
    uuids = read_device_uuids() if plan.accelerator == "amd" else []
    should = f"{plan.gpus_per_node} GPUs for this node"
    try:
        env = normalise_gpu_visibility(os.environ, plan.accelerator, plan.gpus_per_node, uuids).apply(os.environ)
    except BringUpError as error:
        return [Finding("masks", "wrong", str(error.seen), error.rule, error.action or "")]
    used = ",".join(gpu_names(env, plan.accelerator, plan.gpus_per_node))
    return [Finding("masks", "ok", f"{shown}: a run gets {used}", should)]
