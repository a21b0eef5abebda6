"""GPU models by the names that sites use in GRES: vendor and memory. Pure."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuModel:
    """Vendor and memory of a GPU type."""

    accelerator: str
    """nvidia or amd."""
    mem_gb: int | None
    """Memory of the smallest variant; None if unknown."""


# From the vendors' data sheets; half of an MI250 is one GPU to Slurm and HIP.
_MODELS: tuple[tuple[str, GpuModel], ...] = (
    (r"mi35[05]x?", GpuModel("amd", 288)),
    (r"mi325x?", GpuModel("amd", 256)),
    (r"mi300a", GpuModel("amd", 128)),
    (r"mi300x?", GpuModel("amd", 192)),
    (r"mi2[15]0x?", GpuModel("amd", 64)),
    (r"gfx\d+\w*|instinct|amd|mi\d+\w?", GpuModel("amd", None)),
    (r"g?b300", GpuModel("nvidia", 288)),
    (r"g?b200", GpuModel("nvidia", 180)),
    (r"h20", GpuModel("nvidia", 96)),
    (r"h200", GpuModel("nvidia", 141)),
    (r"gh200", GpuModel("nvidia", 96)),
    (r"h[18]00", GpuModel("nvidia", 80)),
    (r"a[18]00", GpuModel("nvidia", 40)),
    (r"l40s?|a40|a6000", GpuModel("nvidia", 48)),
    (r"l4|a10g?|a30|(rtx)?[34]090", GpuModel("nvidia", 24)),
    (r"v100s?|t4|p100", GpuModel("nvidia", 16)),
    (r"nvidia|tesla|geforce|[gr]tx\w*|pascal|volta|turing|ampere|ada|hopper|blackwell|grace", GpuModel("nvidia", None)),
)

_MOST_GB = max(model.mem_gb or 0 for _, model in _MODELS)


def find_model(name: str) -> GpuModel | None:
    """Return the model of a GRES type; None for an unknown name.

    >>> find_model("nvidia_a100-sxm4-80gb")
    GpuModel(accelerator='nvidia', mem_gb=80)
    >>> [find_model(name).mem_gb for name in ("a100-80", "a100_3g.20gb", "v100-32g", "h100-8", "gtx-980")]
    [80, 20, 32, 80, None]
    >>> find_model("fake")
    """
    words = re.split(r"[^a-z0-9]+", name.lower())
    found = next((model for pattern, model in _MODELS if any(re.fullmatch(pattern, word) for word in words)), None)
    if found is None or "gh200" in words:  # gh200_480gb has the memory of its CPU
        return found
    # The name may have the memory, also of a slice (1g.10gb) or without unit (a100-80).
    for number, unit in re.findall(r"(?<![a-z0-9])(\d{1,3})(gb|g?)(?![a-z0-9.])", name.lower()):
        if unit == "gb" or (found.mem_gb or 8) <= int(number) <= _MOST_GB:
            return GpuModel(found.accelerator, int(number))
    return found
