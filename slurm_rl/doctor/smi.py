"""What nvidia-smi and rocm-smi print. Pure.

The forms are those that real machines said: `nvidia-smi -q` of driver 535, `rocm-smi -a --json` of ROCm 6.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One GPU; None is what the driver does not say."""

    name: str
    uuid: str
    memory_bytes: float | None
    used_bytes: float | None
    clock_mhz: float | None
    """Of the multiprocessors, now."""
    max_clock_mhz: float | None
    slowdowns: tuple[str, ...]
    """Why its clock is not higher, when it is for heat or for want of power beyond its own limit."""
    is_split: bool
    """MIG."""
    trouble: str | None = None
    """What the driver says must be done before it is whole again."""


_SLOWDOWNS = ("HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown", "SW Thermal Slowdown")


def parse_nvidia_smi(text: str) -> list[Gpu]:
    """All GPUs of `nvidia-smi -q`, in its order; none where it printed something else."""
    parts = re.split(r"^GPU ([0-9A-Fa-f:.]+)$", text, flags=re.MULTILINE)
    return [_nvidia(_flatten(body)) for body in parts[2::2]]


def parse_driver(text: str) -> str | None:
    """The driver's version, as nvidia-smi names it.

    >>> parse_driver("Driver Version                            : 535.183.01")
    '535.183.01'
    """
    match = re.search(r"^Driver Version\s*:\s*(\S+)", text, re.MULTILINE)
    return match[1] if match else None


def _flatten(body: str) -> dict[str, str]:
    """`Section/Key` -> value, by indentation."""
    found: dict[str, str] = {}
    sections: list[tuple[int, str]] = []
    for line in body.splitlines():
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        while sections and sections[-1][0] >= indent:
            sections.pop()
        key, colon, value = (part.strip() for part in line.partition(" : "))
        # A flag may have details below it, as HW Slowdown has.
        found.setdefault("/".join([*(name for _, name in sections), key]), value)
        if not colon:
            sections.append((indent, key))
    return found


def _nvidia(fields: Mapping[str, str]) -> Gpu:
    # The section was "Clocks Throttle Reasons" before driver 535.
    reasons = {key.rpartition("/")[2] for key, value in fields.items() if "Reasons/" in key and value == "Active"}
    troubles = {
        "GPU Reset Status/Reset Required": "it must be reset",
        "Remapped Rows/Pending": "rows of its memory wait for a reset to be remapped",
        "Remapped Rows/Remapping Failure Occurred": "rows of its memory could not be remapped",
        "Retired Pages/Pending Page Blacklist": "pages of its memory wait for a reset to be retired",
    }
    said = [words for key, words in troubles.items() if fields.get(key) == "Yes"]
    return Gpu(
        name=fields.get("Product Name", "unknown"),
        uuid=fields.get("GPU UUID", ""),
        memory_bytes=_number(fields.get("FB Memory Usage/Total"), 2**20),
        used_bytes=_number(fields.get("FB Memory Usage/Used"), 2**20),
        clock_mhz=_number(fields.get("Clocks/SM")),
        max_clock_mhz=_number(fields.get("Max Clocks/SM")),
        slowdowns=tuple(name for name in _SLOWDOWNS if name in reasons),
        is_split=fields.get("MIG Mode/Current") == "Enabled",
        trouble="; ".join(said) or None,
    )


def parse_rocm_smi(text: str) -> list[Gpu]:
    """All GPUs of `rocm-smi -a --json`, whose values are texts; what it warns of stands before the JSON."""
    try:
        tree = json.loads(text[text.index("{") :])
    except ValueError:
        return []
    cards = [tree[key] for key in sorted(tree, key=_card) if _card(key) >= 0 and isinstance(tree[key], dict)]
    return [_amd({key.lower(): str(value) for key, value in card.items()}) for card in cards]


def _card(key: str) -> int:
    return int(key[4:]) if re.fullmatch(r"card\d+", key) else -1


def _amd(fields: Mapping[str, str]) -> Gpu:
    return Gpu(
        name=fields.get("card series", "unknown"),
        uuid=fields.get("unique id", ""),
        memory_bytes=_number(fields.get("vram total memory (b)")),
        used_bytes=_number(fields.get("vram total used memory (b)")),
        clock_mhz=_number(fields.get("sclk clock speed:")),
        max_clock_mhz=_number(fields.get("valid sclk range", "").rpartition("-")[2]),
        slowdowns=(),
        is_split=False,
    )


def _number(text: str | None, unit: float = 1.0) -> float | None:
    """What a tool wrote before its unit; None where it has no number.

    >>> _number("81559 MiB", 2**20) == 81559 * 2**20, _number("(1600Mhz)"), _number("N/A")
    (True, 1600.0, None)
    """
    match = re.search(r"\d+(\.\d+)?", text or "")
    return float(match[0]) * unit if match else None
