"""Checks on the output of the amdgpu driver, amd-smi and rocm-smi."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from slurm_rl.plan.visibility import MASK_VARIABLES
from slurm_rl.plugins.health.gpus import parse_rocm_smi, select_visible
from slurm_rl.plugins.health.nvidia import check_gpu
from slurm_rl.plugins.health.verdict import NodeSpec, Verdict, worst

_MANY_CORRECTED = 1000


def check_gpus(text: str, rc: int, spec: NodeSpec) -> Verdict:
    """Check number, type, memory and use of the GPUs, by `kfd <count>` of the driver and rocm-smi's JSON."""
    kfd = re.search(r"^kfd (\d+)$", text, re.MULTILINE)
    cards = parse_rocm_smi(text)
    mask = re.search(r"^mask (\S+)$", text, re.MULTILINE)
    gpus = select_visible(cards, "amd", spec.gpus, {MASK_VARIABLES["amd"]: mask[1]} if mask and cards else {})
    if not cards and not kfd:
        return Verdict("unknown", "neither the driver nor rocm-smi lists GPUs")
    count = len(gpus) if cards else int(kfd[1])  # type: ignore[index]
    names = ", ".join(sorted({gpu.name for gpu in gpus if gpu.name != "unknown"}))
    seen, facts = f"{count} GPUs {names}".strip(), {"GPU": names} if names else {}
    if count < spec.gpus:
        return Verdict("bad", f"{seen}, not {spec.gpus}", facts)
    return worst([Verdict("ok", seen, facts), *(check_gpu(index, gpu, spec) for index, gpu in enumerate(gpus))])


def check_ras(text: str, rc: int, spec: NodeSpec) -> Verdict:
    """Check the error counters in sysfs and in amd-smi's JSON, whichever exist."""
    verdicts = [*_check_sysfs(text), *_check_json(text)]
    return worst(verdicts) if verdicts else Verdict("unknown", "no error counters")


def _check_sysfs(text: str) -> Iterator[Verdict]:
    for kind, count in re.findall(r"^(ue|ce): (\d+)\s*$", text, re.MULTILINE):
        if kind == "ue":
            yield _uncorrectable(float(count), "")
        elif int(count) > _MANY_CORRECTED:
            yield Verdict("warn", f"{count} corrected errors")
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
        if not isinstance(gpu, dict):
            continue
        ecc, xgmi = gpu.get("ecc"), gpu.get("xgmi_err")
        count = _number(ecc.get("total_uncorrectable_count")) if isinstance(ecc, dict) else None
        if count is not None:
            yield _uncorrectable(count, f"GPU {gpu.get('gpu')}: ")
        errors = sum(_number(value) or 0 for value in xgmi.values()) if isinstance(xgmi, dict) else 0
        if errors:
            yield Verdict("warn", f"GPU {gpu.get('gpu')}: {errors:g} xGMI errors")


def _number(value: Any) -> float | None:
    """Return a number that is bare or in {"value": 3, "unit": "..."}."""
    value = value.get("value") if isinstance(value, dict) else value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
