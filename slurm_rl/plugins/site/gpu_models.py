"""GPU models by the names that sites use in GRES: vendor and memory. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuModel:
    """Vendor and memory of a GPU type."""

    accelerator: str
    """nvidia or amd."""
    mem_gb: int | None
    """Unknown if None."""
    other_mem_gb: int | None = None
    """Memory of the larger variant, if there is one."""


# The smaller memory first, since a model that fits in it fits in both. From the vendors' data sheets; half of an MI250
# is one GPU to Slurm and HIP.
_MODELS: tuple[tuple[str, GpuModel], ...] = (
    (r"mi355x?|mi350x?", GpuModel("amd", 288)),
    (r"mi325x?", GpuModel("amd", 256)),
    (r"mi300a", GpuModel("amd", 128)),
    (r"mi300x?", GpuModel("amd", 192)),
    (r"mi2[15]0x?", GpuModel("amd", 64)),
    (r"mi100", GpuModel("amd", 32)),
    (r"gfx\d+\w*|instinct|amd|mi\d+\w?|radeon|vega\d*", GpuModel("amd", None)),
    (r"h20", GpuModel("nvidia", 96)),
    (r"g?b300", GpuModel("nvidia", 288)),
    (r"g?b200", GpuModel("nvidia", 180)),
    (r"h200", GpuModel("nvidia", 141)),
    (r"gh200", GpuModel("nvidia", 96, 141)),
    (r"h[18]00", GpuModel("nvidia", 80, 94)),
    (r"a[18]00", GpuModel("nvidia", 40, 80)),
    (r"l40s?|a40|rtx8000|a6000|6000ada", GpuModel("nvidia", 48)),
    (r"l4|a10g?|a30|rtx?3090(ti)?|rtx?4090|rtx6000|titanrtx|3090|4090", GpuModel("nvidia", 24)),
    (r"rtx?5090|5090", GpuModel("nvidia", 32)),
    (r"v100s?", GpuModel("nvidia", 16, 32)),
    (r"t4|a4000|p100", GpuModel("nvidia", 16)),
    (r"2080ti|rtx2080ti|1080ti|gtx1080ti", GpuModel("nvidia", 11)),
    (
        r"nvidia|tesla|quadro|geforce|titan\w*|[gr]tx\w*|pascal|volta|turing|ampere|ada|lovelace|hopper|blackwell|grace"
        r"|k[48]0m?|p40|a2|a[2456]\d00|m\d0|\dg",
        GpuModel("nvidia", None),
    ),
)


def find_model(name: str) -> GpuModel | None:
    """Return the model of a GRES type; None for an unknown name.

    >>> find_model("nvidia_a100-sxm4-80gb")
    GpuModel(accelerator='nvidia', mem_gb=80, other_mem_gb=None)
    >>> find_model("fake")
    """
    lower = name.lower()
    words = re.split(r"[^a-z0-9]+", lower)
    found = next((model for pattern, model in _MODELS if any(re.fullmatch(pattern, word) for word in words)), None)
    if found is None:
        return None
    # The name may have the memory, also of a slice (1g.10gb); some sites omit the unit: a100-80.
    stated = re.search(r"(?<!\d)(\d+)gb(?![a-z0-9.])|(?<=[^a-z0-9])(\d+)g(?![a-z0-9.])", lower)
    stated = stated or re.search(r"(?:[avh][18]00)[-_](\d{2})(?!\d)()", lower)
    mem_gb = int(stated[1] or stated[2]) if stated else 0
    # `gh200_480gb` names the memory of its CPU.
    most = max(found.mem_gb or mem_gb, found.other_mem_gb or 0)
    return GpuModel(found.accelerator, mem_gb) if 0 < mem_gb <= most else found
