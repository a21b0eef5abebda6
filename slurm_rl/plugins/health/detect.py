"""The GPUs of this machine, from the programs of the drivers, for runs without a cluster preset."""

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from slurm_rl.config.detect_gpus import MachineGpus
from slurm_rl.errors import first_line
from slurm_rl.plan.accelerator import AcceleratorKind
from slurm_rl.plan.visibility import list_visible
from slurm_rl.plugins.health.gpus import TOOLS, Gpu, parse_nvidia_smi, parse_rocm_smi, select_gpus

_ANSWER_S = 30.0
"""Eight GPUs without persistence mode take several seconds."""
_known: dict[tuple[str, ...], MachineGpus | None] = {}
_MASKS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def list_gpus(environ: Mapping[str, str]) -> MachineGpus | None:
    """Return the GPUs that a program on this machine sees; None without a driver's program.

    The answer is kept for the process: a sweep composes many configs.
    """
    key = tuple(environ.get(name, "not set") for name in ("PATH", *_MASKS))
    if key not in _known:
        _known[key] = next((found for tool in _ASKED if (found := _ask(*tool, environ))), None)
    return _known[key]


def parse_amd_smi(text: str) -> list[Gpu]:
    """Return the GPUs of `amd-smi static --asic --vram --json`, a list or, since ROCm 7, {"gpu_data": [...]}."""
    try:
        tree = json.loads(text[min(text.index(mark) for mark in "[{" if mark in text) :])
    except ValueError:
        return []
    rows = tree.get("gpu_data", []) if isinstance(tree, dict) else tree
    return [_parse_amd_gpu(row) for row in rows if isinstance(row, dict) and "gpu" in row]


def _parse_amd_gpu(row: dict[str, Any]) -> Gpu:
    asic, vram = row.get("asic"), row.get("vram")
    size = vram.get("size") if isinstance(vram, dict) else None
    memory = float(size["value"]) * 2**20 if isinstance(size, dict) and size.get("unit") == "MB" else None
    names = asic if isinstance(asic, dict) else {}
    return Gpu(str(names.get("market_name", "unknown")), str(names.get("asic_serial", "")), memory, None)


_Parse = Callable[[str], list[Gpu]]
_ASKED: tuple[tuple[AcceleratorKind, list[str], _Parse], ...] = (
    ("nvidia", TOOLS["nvidia"], parse_nvidia_smi),
    ("amd", TOOLS["amd"], parse_rocm_smi),
    ("amd", ["amd-smi", "static", "--asic", "--vram", "--json"], parse_amd_smi),
)


def _ask(kind: AcceleratorKind, argv: list[str], parse: _Parse, environ: Mapping[str, str]) -> MachineGpus | None:
    """Return the answer of one program; None if it is not installed."""
    name = argv[0]
    if (program := shutil.which(name, path=environ.get("PATH"))) is None:
        return None
    try:
        done = subprocess.run(
            [program, *argv[1:]], env=dict(environ), capture_output=True, text=True, errors="replace", timeout=_ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return MachineGpus("cpu", 0, None, f"{name} on this machine failed: {first_line(error)}; the run uses the CPU")
    gpus = parse(done.stdout)
    if done.returncode or not gpus:
        words = "".join(filter(str.isprintable, " ".join(f"{done.stdout} {done.stderr}".split())))[:120]
        words = words or f"exit status {done.returncode}"
        why = f"failed: {words}" if done.returncode else "lists no GPU"
        return MachineGpus("cpu", 0, None, f"{name} on this machine {why}; the run uses the CPU")
    return describe_gpus(kind, gpus, environ, name)


def describe_gpus(kind: AcceleratorKind, gpus: list[Gpu], environ: Mapping[str, str], name: str) -> MachineGpus:
    """Apply the masks of the environment to the GPUs that a driver's program lists."""
    mask = list_visible(environ, kind)
    chosen = select_gpus(gpus, mask) if mask is not None else gpus
    if not chosen:
        return MachineGpus(
            "cpu", 0, None, f"{name} lists GPUs ({len(gpus)}), and the masks leave none; the run uses the CPU"
        )
    if any(gpu.fields.get("mig_mode/current") == "Enabled" for gpu in chosen):
        why = "not used: MIG splits them. Next: set cluster.accelerator, gpus_per_node and gpu_mem_gb of a slice"
        return MachineGpus("cpu", 0, None, f"{name} on this machine: {len(chosen)} GPUs; {why}")
    # CUDA may count GPUs of several kinds in another order than nvidia-smi.
    models = sorted({gpu.name for gpu in gpus})
    sizes = [gpu.memory_bytes for gpu in (chosen if len(models) == 1 else gpus)]
    known = [size for size in sizes if size is not None]
    mem_gb = float(min(known) // 1e9) if len(known) == len(sizes) else None
    memory = f" of {mem_gb:g} GB" if mem_gb is not None else ""
    of_all = f" of {len(gpus)}, by the masks of the environment" if len(chosen) < len(gpus) else ""
    return MachineGpus(
        kind, len(chosen), mem_gb, f"{name} on this machine: {len(chosen)} x {', '.join(models)}{memory}{of_all}"
    )
