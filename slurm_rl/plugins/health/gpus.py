"""Parsers for nvidia-smi and rocm-smi, and the comparison of GPUs with the preset."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_rl.plan.accelerator import AcceleratorKind
from slurm_rl.plan.visibility import MASK_VARIABLES, gpu_names
from slurm_rl.plugins.health.verdict import NodeSpec, Verdict, worst

_USED_BYTES = 512 * 2**20
_SAME_MEMORY = 0.95
"""Share of the preset's memory that a GPU must have: ECC and the driver take a part."""

TOOLS: dict[AcceleratorKind, list[str]] = {
    "nvidia": ["nvidia-smi", "-q"],
    "amd": ["rocm-smi", "-a", "--showmeminfo", "vram", "--json"],
}


@dataclass(frozen=True)
class Gpu:
    """One GPU; None where the driver does not report a value."""

    name: str
    uuid: str
    memory_bytes: float | None
    used_bytes: float | None
    fields: Mapping[str, str] = field(default_factory=dict)
    """All values of nvidia-smi by `section/key` in lower case."""
    num_compute: int = 0
    """Compute processes on the GPU, as listed by nvidia-smi."""

    def number(self, part: str) -> float | None:
        """Return the largest number among the fields with `part` in their name; None if there is none."""
        numbers = [parse_number(value) for key, value in self.fields.items() if part in key]
        return max((value for value in numbers if value is not None), default=None)


def parse_gpus(kind: AcceleratorKind, text: str) -> list[Gpu]:
    """Return the GPUs in the output of TOOLS[kind], in the tool's order."""
    return parse_nvidia_smi(text) if kind == "nvidia" else parse_rocm_smi(text)


def parse_nvidia_smi(text: str) -> list[Gpu]:
    """Return the GPUs of `nvidia-smi -q`; empty for any other output."""
    parts = re.split(r"^GPU ([0-9A-Fa-f:.]+)$", text, flags=re.MULTILINE)
    return [_parse_nvidia_gpu(body) for body in parts[2::2]]


def _parse_nvidia_gpu(body: str) -> Gpu:
    fields = _flatten(body)
    return Gpu(
        name=fields.get("product_name", "unknown"),
        uuid=fields.get("gpu_uuid", ""),
        memory_bytes=parse_number(fields.get("fb_memory_usage/total"), 2**20),
        used_bytes=parse_number(fields.get("fb_memory_usage/used"), 2**20),
        fields=fields,
        num_compute=len(re.findall(r"^\s+Type\s+: \S*C\b", body, re.MULTILINE)),
    )


def _flatten(body: str) -> dict[str, str]:
    """Map `section/key` to its value, by indentation."""
    fields: dict[str, str] = {}
    sections: list[tuple[int, str]] = []
    for line in body.splitlines():
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        while sections and sections[-1][0] >= indent:
            sections.pop()
        key, colon, value = (part.strip() for part in line.partition(" : "))
        name = key.lower().replace(" ", "_")
        # A flag may have details below it, such as HW Slowdown.
        fields.setdefault("/".join([*(name for _, name in sections), name]), value)
        if not colon:
            sections.append((indent, name))
    return fields


def count_attached(text: str) -> int | None:
    """Return the number of GPUs in the header of nvidia-smi."""
    match = re.search(r"^Attached GPUs\s*:\s*(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else None


def parse_rocm_smi(text: str) -> list[Gpu]:
    """Return the GPUs of `rocm-smi -a --json`; warnings may precede the JSON."""
    try:
        tree = json.loads(text[text.index("{") :])
    except (ValueError, RecursionError):
        return []
    cards = {int(key[4:]): card for key, card in tree.items() if re.fullmatch(r"card\d+", key)}
    found = []
    for _, card in sorted(cards.items()):
        fields = {key.lower(): str(value) for key, value in card.items()} if isinstance(card, dict) else {}
        memory = parse_number(fields.get("vram total memory (b)"))
        used = parse_number(fields.get("vram total used memory (b)"))
        found.append(Gpu(fields.get("card series", "unknown"), fields.get("unique id", ""), memory, used))
    return found


def select_visible(gpus: list[Gpu], kind: AcceleratorKind, count: int, text: str) -> list[Gpu]:
    """Return the GPUs in the job's mask, a line of `mask <names>` in the output of the tool."""
    mask = re.search(r"^mask (\S+)$", text, re.MULTILINE)
    if mask is None:
        return gpus
    return select_gpus(gpus, gpu_names({MASK_VARIABLES[kind]: mask[1]}, kind, count)) or gpus


def select_gpus(gpus: list[Gpu], names: Sequence[str]) -> list[Gpu]:
    """Return the GPUs with these indices or UUIDs.

    If an index is out of range, the cgroup already hides the other GPUs and all are returned.
    """
    chosen = []
    for name in names:
        if not name.isdigit():
            chosen += [gpu for gpu in gpus if gpu.uuid.startswith(name)]  # CUDA accepts a prefix of a UUID
        elif int(name) >= len(gpus):
            return gpus
        else:
            chosen.append(gpus[int(name)])
    return chosen


def judge_gpus(gpus: list[Gpu], count: int, spec: NodeSpec) -> Verdict:
    """Compare the GPUs, or only their count where the tool lists none, with the preset."""
    names = ", ".join(sorted({gpu.name for gpu in gpus if gpu.name != "unknown"}))
    seen, facts = f"{count} x {names}" if names else f"{count} GPUs", {"GPU": names} if names else {}
    if count < spec.gpus:
        return Verdict("bad", f"{seen}, not {spec.gpus}", facts)
    return worst([Verdict("ok", seen, facts), *(_judge_gpu(index, gpu, spec) for index, gpu in enumerate(gpus))])


def _judge_gpu(index: int, gpu: Gpu, spec: NodeSpec) -> Verdict:
    if gpu.memory_bytes and gpu.memory_bytes / 1e9 < _SAME_MEMORY * (spec.gpu_mem_gb or 0):
        memory = f"{gpu.memory_bytes / 1e9:.0f} GB, not {spec.gpu_mem_gb:g} (cluster.gpu_mem_gb)"
        return Verdict("bad", f"GPU {index}: {memory}")
    if gpu.fields.get("mig_mode/current") == "Enabled" and spec.gpus > 1:
        return Verdict("warn", f"GPU {index} is split by MIG; NCCL needs whole GPUs")
    if gpu.num_compute:
        return Verdict("warn", f"GPU {index}: {gpu.num_compute} compute processes already run on it")
    if (gpu.used_bytes or 0) > _USED_BYTES:
        return Verdict("warn", f"GPU {index}: {(gpu.used_bytes or 0) / 2**20:.0f} MiB already in use")
    return Verdict("ok")


def parse_number(text: str | None, unit: float = 1.0) -> float | None:
    """Return the first number in a value, times `unit`; None if there is none.

    >>> parse_number("81559 MiB", 2**20) == 81559 * 2**20, parse_number("(1600Mhz)"), parse_number("N/A")
    (True, 1600.0, None)
    """
    match = re.search(r"\d+(\.\d+)?", text or "")
    return float(match[0]) * unit if match else None
