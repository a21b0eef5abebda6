"""What nvidia-smi and rocm-smi print. Pure.

The forms are those that real machines said: `nvidia-smi -q` of driver 535, `-q -x` of 575, `rocm-smi -a --json` of
ROCm 6. `doctor` and the preflight read them here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree


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
    fields: Mapping[str, str] = field(default_factory=dict)
    """All that the tool said of it, `section/key` in lower case; of nvidia-smi alone, in the names of its text."""
    num_compute: int = 0
    """Processes that compute on it, as nvidia-smi lists them."""

    def number(self, part: str) -> float | None:
        """The largest number of all fields whose name has `part` in it; None when none of them has one."""
        found = [_number(value) for key, value in self.fields.items() if part in key]
        return max((value for value in found if value is not None), default=None)


_SLOWDOWNS = {
    "hw_slowdown": "HW Slowdown",
    "hw_thermal_slowdown": "HW Thermal Slowdown",
    "hw_power_brake_slowdown": "HW Power Brake Slowdown",
    "sw_thermal_slowdown": "SW Thermal Slowdown",
}
_TROUBLES = {
    "gpu_reset_status/reset_required": "it must be reset",
    "remapped_rows/pending": "rows of its memory wait for a reset to be remapped",
    "remapped_rows/remapping_failure_occurred": "rows of its memory could not be remapped",
    "retired_pages/pending_page_blacklist": "pages of its memory wait for a reset to be retired",
}
_IN_XML = {
    "uuid": "gpu_uuid",
    "mig_mode/current_mig": "mig_mode/current",
    "remapped_rows/remapped_row_pending": "remapped_rows/pending",
    "remapped_rows/remapped_row_failure": "remapped_rows/remapping_failure_occurred",
    "retired_pages/pending_blacklist": "retired_pages/pending_page_blacklist",
    "retired_pages/pending_retirement": "retired_pages/pending_page_blacklist",
    "clocks/sm_clock": "clocks/sm",
    "max_clocks/sm_clock": "max_clocks/sm",
}
"""Names of `-x` that are others than those of the text."""


def parse_nvidia_smi(text: str) -> list[Gpu]:
    """All GPUs of `nvidia-smi -q`, with `-x` or without, in its order; none where it printed something else, and of XML
    that is cut short."""
    if "<nvidia_smi_log>" in text:
        return _parse_xml(text)
    parts = re.split(r"^GPU ([0-9A-Fa-f:.]+)$", text, flags=re.MULTILINE)
    return [
        _nvidia(_flatten(body), len(re.findall(r"^\s+Type\s+: \S*C\b", body, re.MULTILINE))) for body in parts[2::2]
    ]


def _parse_xml(text: str) -> list[Gpu]:
    try:
        tree = ElementTree.fromstring(text[text.index("<nvidia_smi_log>") :].strip())
    except ElementTree.ParseError:
        return []
    return [
        _nvidia(dict(_flatten_xml(gpu)), sum("C" in (kind.text or "") for kind in gpu.iter("type")))
        for gpu in tree.findall("gpu")
    ]


def _flatten_xml(element: ElementTree.Element, prefix: str = "") -> Iterator[tuple[str, str]]:
    for child in element:
        name = prefix + re.sub(r"^clocks_(event|throttle)_reason_", "", child.tag)
        if len(child):
            yield from _flatten_xml(child, f"{name}/")
        else:
            yield _IN_XML.get(name, name), (child.text or "").strip()


def count_attached(text: str) -> int | None:
    """How many GPUs nvidia-smi itself counts; what it tells of fewer was cut off."""
    match = re.search(r"^Attached GPUs\s*:\s*(\d+)|<attached_gpus>(\d+)<", text, re.MULTILINE)
    return int(match[1] or match[2]) if match else None


def parse_driver(text: str) -> str | None:
    """The driver's version, as nvidia-smi names it.

    >>> parse_driver("Driver Version                            : 535.183.01")
    '535.183.01'
    """
    match = re.search(r"^Driver Version\s*:\s*(\S+)|<driver_version>([^<]+)<", text, re.MULTILINE)
    return (match[1] or match[2]) if match else None


def _flatten(body: str) -> dict[str, str]:
    """`section/key` -> value, by indentation."""
    found: dict[str, str] = {}
    sections: list[tuple[int, str]] = []
    for line in body.splitlines():
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        while sections and sections[-1][0] >= indent:
            sections.pop()
        key, colon, value = (part.strip() for part in line.partition(" : "))
        name = key.lower().replace(" ", "_")
        # A flag may have details below it, as HW Slowdown has.
        found.setdefault("/".join([*(name for _, name in sections), name]), value)
        if not colon:
            sections.append((indent, name))
    return found


def _nvidia(fields: Mapping[str, str], num_compute: int) -> Gpu:
    # The section was "Clocks Throttle Reasons" before driver 535.
    reasons = {key.rpartition("/")[2] for key, value in fields.items() if "reasons/" in key and value == "Active"}
    said = [words for key, words in _TROUBLES.items() if fields.get(key) == "Yes"]
    return Gpu(
        name=fields.get("product_name", "unknown"),
        uuid=fields.get("gpu_uuid", ""),
        memory_bytes=_number(fields.get("fb_memory_usage/total"), 2**20),
        used_bytes=_number(fields.get("fb_memory_usage/used"), 2**20),
        clock_mhz=_number(fields.get("clocks/sm")),
        max_clock_mhz=_number(fields.get("max_clocks/sm")),
        slowdowns=tuple(words for name, words in _SLOWDOWNS.items() if name in reasons),
        is_split=fields.get("mig_mode/current") == "Enabled",
        trouble="; ".join(said) or None,
        fields=fields,
        num_compute=num_compute,
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
