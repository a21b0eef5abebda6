"""Verdicts on what the amdgpu driver, amd-smi and rocm-smi say. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from slurm_rl.plan.visibility import MASK_VARIABLES
from slurm_rl.plugins.health.doctor.gpus import choose_mine
from slurm_rl.plugins.health.doctor.smi import parse_rocm_smi
from slurm_rl.plugins.health.gate.verdict import Verdict, Wanted, worst

_USED_BYTES = 512 * 2**20
_MANY_CORRECTED = 1000


def read_gpus(text: str, rc: int, wanted: Wanted) -> Verdict:
    """`kfd <GPUs that the driver has>`, and `rocm-smi` as JSON where the host has it."""
    kfd = re.search(r"^kfd (\d+)$", text, re.MULTILINE)
    cards = parse_rocm_smi(text)
    mask = re.search(r"^mask (\S+)$", text, re.MULTILINE)
    mine = choose_mine(cards, "amd", wanted.gpus, {MASK_VARIABLES["amd"]: mask[1]} if mask and cards else {})
    count = len(mine) if cards else int(kfd[1]) if kfd else None
    if count is None:
        return Verdict("unknown", "neither the driver nor rocm-smi counts GPUs")
    names = sorted({card.name for card in mine if card.name != "unknown"})
    seen, facts = f"{count} GPUs {', '.join(names)}".strip(), {"GPU": ", ".join(names)} if names else {}
    if count < wanted.gpus:
        return Verdict("bad", f"{seen}, not {wanted.gpus}", facts)
    used = [
        f"GPU {place}: {(card.used_bytes or 0) / 2**20:.0f} MiB"
        for place, card in enumerate(mine)
        if _in_use(card.used_bytes)
    ]
    return Verdict("warn", f"{'; '.join(used)} in use already", facts) if used else Verdict("ok", seen, facts)


def _in_use(used_bytes: float | None) -> bool:
    return (used_bytes or 0) > _USED_BYTES


def read_ras(text: str, rc: int, wanted: Wanted) -> Verdict:
    """Error counters in sysfs, then amd-smi's JSON, each where there is one."""
    found = [*_read_sysfs(text), *_read_json(text)]
    return worst(found) if found else Verdict("unknown", "no error counter can be read")


def _read_sysfs(text: str) -> Iterator[Verdict]:
    for match in re.finditer(r"^(ue|ce): (\d+)\s*$", text, re.MULTILINE):
        number = int(match[2])
        if match[1] == "ue":
            yield (
                Verdict("bad", f"{number} uncorrectable errors") if number else Verdict("ok", "no uncorrectable error")
            )
        elif number > _MANY_CORRECTED:
            yield Verdict("warn", f"{number} corrected errors")
    pages = re.findall(r"^0x[0-9a-f]+ : 0x[0-9a-f]+ : ([RPF])\s*$", text, re.MULTILINE)
    if waiting := sum(flag in "PF" for flag in pages):
        yield Verdict("bad", f"{waiting} bad pages of memory are not retired")


def _read_json(text: str) -> Iterator[Verdict]:
    start = min((text.find(mark) for mark in "[{" if mark in text), default=-1)
    if start < 0:
        return
    try:
        tree = json.loads(text[start:])
    except (ValueError, RecursionError):
        return
    for gpu in _gpus_of(tree):
        ecc = gpu.get("ecc")
        if isinstance(ecc, dict) and (number := _number(ecc.get("total_uncorrectable_count"))) is not None:
            yield (
                Verdict("bad", f"GPU {gpu.get('gpu')}: {number:g} uncorrectable errors")
                if number
                else Verdict("ok", "no uncorrectable error")
            )
        xgmi = gpu.get("xgmi_err")
        errors = sum(_number(value) or 0 for value in xgmi.values()) if isinstance(xgmi, dict) else 0
        if errors:
            yield Verdict("warn", f"GPU {gpu.get('gpu')}: {errors:g} errors of xGMI")


def _gpus_of(tree: Any) -> Iterator[dict[str, Any]]:
    """amd-smi gives a list, or one in `gpu_data`, by its version."""
    rows = tree.get("gpu_data") if isinstance(tree, dict) else tree
    yield from (row for row in (rows if isinstance(rows, list) else ()) if isinstance(row, dict))


def _number(value: Any) -> float | None:
    """Bare, or as {"value": 3, "unit": "..."}."""
    value = value.get("value") if isinstance(value, dict) else value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
