"""Checks on the output of the amdgpu driver, amd-smi and rocm-smi."""

import json
import re
from collections.abc import Iterator
from typing import Any

from slurm_rl.plugins.health.gpus import judge_gpus, parse_rocm_smi, select_visible
from slurm_rl.plugins.health.verdict import NodeSpec, Verdict, worst


def check_gpus(text: str, rc: int, spec: NodeSpec) -> Verdict:
    """Check number, type, memory and use of the GPUs, by `kfd <count>` of the driver and rocm-smi's JSON."""
    kfd = re.search(r"^kfd (\d+)$", text, re.MULTILINE)
    cards = parse_rocm_smi(text)
    if cards:
        gpus = select_visible(cards, "amd", spec.gpus, text)
        return judge_gpus(gpus, len(gpus), spec)
    if kfd:
        return judge_gpus([], int(kfd[1]), spec)
    return Verdict("unknown", "neither the driver nor rocm-smi lists GPUs")


def check_ecc(text: str, rc: int, spec: NodeSpec) -> Verdict:
    """Check the error counters in sysfs and in amd-smi's JSON, whichever exist."""
    verdicts = [*_check_sysfs(text), *_check_json(text)]
    return worst(verdicts) if verdicts else Verdict("unknown", "no error counters")


def _check_sysfs(text: str) -> Iterator[Verdict]:
    for count in re.findall(r"^ue: (\d+)\s*$", text, re.MULTILINE):
        yield _uncorrectable(float(count), "")
    pages = re.findall(r"^0x[0-9a-f]+ : 0x[0-9a-f]+ : ([RPF])\s*$", text, re.MULTILINE)
    if pending := sum(flag in "PF" for flag in pages):
        yield Verdict("bad", f"{pending} bad memory pages are not retired")


def _uncorrectable(count: float, where: str) -> Verdict:
    return (
        Verdict("bad", f"{where}{count:g} uncorrectable errors") if count else Verdict("ok", "no uncorrectable error")
    )


def _check_json(text: str) -> Iterator[Verdict]:
    start = min((text.find(mark) for mark in "[{" if mark in text), default=-1)
    try:
        tree = json.loads(text[start:]) if start >= 0 else []
    except (ValueError, RecursionError):
        return
    rows = tree.get("gpu_data") if isinstance(tree, dict) else tree  # amd-smi's form depends on its version
    for gpu in rows if isinstance(rows, list) else ():
        ecc = gpu.get("ecc") if isinstance(gpu, dict) else None
        count = _number(ecc.get("total_uncorrectable_count")) if isinstance(ecc, dict) else None
        if count is not None:
            yield _uncorrectable(count, f"GPU {gpu.get('gpu')}: ")


def _number(value: Any) -> float | None:
    """Return a number that is bare or in {"value": 3, "unit": "..."}."""
    value = value.get("value") if isinstance(value, dict) else value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
