"""Checks on the output of nvidia-smi, dcgmi and the kernel log for NVIDIA GPUs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

from slurm_rl.plan.visibility import MASK_VARIABLES
from slurm_rl.plugins.health.gpus import Gpu, count_attached, parse_driver, parse_nvidia_smi, select_visible
from slurm_rl.plugins.health.verdict import TIMED_OUT, NodeSpec, State, Verdict, tool_failure, worst

_USED_BYTES = 512 * 2**20
_SAME_MEMORY = 0.95
"""Share of the preset's memory that a GPU must have: ECC and the driver take a part."""
BAD_XIDS = frozenset({48, 54, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158})
"""Xids after which a GPU needs a reset or a repair. 13, 31, 43, 45 and 69 are faults of programs."""
WARN_XIDS = frozenset({63, 92, 94, 109, *range(144, 151)})
_DAY_S = 86400.0
_MIN_FLAPS = 3
_RECOVERIES = ("Reset", "Reboot", "Drain P2P", "Drain and Reset", "GPU Reset", "Node Reboot Required")
_SLOWDOWNS = ("HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown", "SW Thermal Slowdown")
_DCGM_STATES: dict[str, State] = {"Pass": "ok", "Fail": "bad", "Warn": "warn"}


def _visible_gpus(text: str, rc: int, spec: NodeSpec) -> list[Gpu] | Verdict:
    """Return the job's GPUs, or a verdict if nvidia-smi did not list them."""
    if failure := tool_failure(rc):
        return failure
    if rc == TIMED_OUT:
        return Verdict("bad", "nvidia-smi timed out: a GPU hangs")
    gpus = parse_nvidia_smi(text)
    if rc or re.search(r"Unable to determine the device handle|couldn't communicate with the NVIDIA driver", text):
        words = " ".join(re.sub(r"^mask .*", "", text, flags=re.MULTILINE).split())
        return Verdict("bad", f"nvidia-smi: {words[:200] or f'exit status {rc}'}")
    if not gpus:
        return Verdict("unknown", "the output of nvidia-smi cannot be parsed")
    attached = count_attached(text)
    if attached is not None and len(gpus) < min(attached, spec.gpus):
        return Verdict("unknown", f"the output of nvidia-smi ends after {len(gpus)} of {attached} GPUs")
    mask = re.search(r"^mask (\S+)$", text, re.MULTILINE)
    return select_visible(gpus, "nvidia", spec.gpus, {MASK_VARIABLES["nvidia"]: mask[1]} if mask else {})


def check_gpus(text: str, rc: int, spec: NodeSpec) -> Verdict:
    """Check number, type, memory and use of the GPUs."""
    gpus = _visible_gpus(text, rc, spec)
    if isinstance(gpus, Verdict):
        return gpus
    names = sorted({gpu.name for gpu in gpus})
    if "unknown" in names or any(gpu.memory_bytes is None for gpu in gpus):
        return Verdict("unknown", "nvidia-smi does not report name and memory of all GPUs")
    driver = parse_driver(text)
    seen, facts = f"{len(gpus)} x {', '.join(names)}", {"GPU": ", ".join(names)}
    if len(gpus) < spec.gpus:
        return Verdict("bad", f"{seen}, not {spec.gpus}", facts)
    verdicts = [check_gpu(index, gpu, spec) for index, gpu in enumerate(gpus)]
    return worst([Verdict("ok", f"{seen}, driver {driver}" if driver else seen, facts), *verdicts])


def check_gpu(index: int, gpu: Gpu, spec: NodeSpec) -> Verdict:
    """Check memory, MIG and use of one GPU of any vendor."""
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


def check_recovery(text: str, rc: int, spec: NodeSpec) -> Verdict:
    """Check the recovery action that the driver (570 and newer) requests."""
    return _check_each(text, rc, spec, _check_recovery)


def _check_recovery(name: str, gpu: Gpu) -> Iterator[Verdict]:
    action = gpu.fields.get("gpu_recovery_action", "")
    if gpu.fields.get("gpu_reset_status/reset_required") == "Yes":
        yield Verdict("bad", f"{name} must be reset")
    if action == "None":
        yield Verdict("ok", "no action")
    elif action in _RECOVERIES:
        yield Verdict("bad", f"{name} needs: {action}")
    else:
        yield Verdict("unknown", "the driver does not report a recovery action")


def check_ecc(text: str, rc: int, spec: NodeSpec) -> Verdict:
    """Check memory errors, remapped rows and retired pages."""
    return _check_each(text, rc, spec, _check_ecc)


def _check_ecc(name: str, gpu: Gpu) -> Iterator[Verdict]:
    fields = gpu.fields
    failed = fields.get("remapped_rows/remapping_failure_occurred", "")
    if failed == "Yes":
        yield Verdict("bad", f"{name}: a memory row could not be remapped")
    # One counter until driver 535, then one for parity and one for SEC-DED.
    sram, dram = gpu.number("volatile/sram_uncorrectable"), gpu.number("volatile/dram_uncorrectable")
    if sram:
        yield Verdict("bad", f"{name}: {sram:g} uncorrectable SRAM errors since the driver was loaded")
    if any("threshold_exceeded" in key and value == "Yes" for key, value in fields.items()):
        yield Verdict("bad", f"{name}: more SRAM errors than the vendor's threshold")
    if dram:
        yield Verdict("warn", f"{name}: {dram:g} uncorrectable memory errors since the driver was loaded")
    if fields.get("remapped_rows/pending") == "Yes":
        yield Verdict("warn", f"{name}: a row remap is pending until a reset")
    if fields.get("retired_pages/pending_page_blacklist") == "Yes":
        yield Verdict("warn", f"{name}: a page retirement is pending until a reset")
    is_complete = failed == "No" and sram is not None
    yield Verdict("ok", "no uncorrectable error") if is_complete else Verdict("unknown", f"{name}: no error counters")


def check_clocks(text: str, rc: int, spec: NodeSpec) -> Verdict:
    """Check for slowdowns by heat or power; never bad, since one sample of an idle GPU proves nothing."""
    return _check_each(text, rc, spec, _check_clocks)


def _check_clocks(name: str, gpu: Gpu) -> Iterator[Verdict]:
    # The section was "Clocks Throttle Reasons" before driver 535.
    reasons = {key.rpartition("/")[2]: value for key, value in gpu.fields.items() if "reasons/" in key}
    active = [reason for reason in _SLOWDOWNS if reasons.get(reason.lower().replace(" ", "_")) == "Active"]
    if active:
        yield Verdict("warn", f"{name}: {', '.join(active)}")
    elif "hw_slowdown" in reasons:
        yield Verdict("ok", "no slowdown")
    else:
        yield Verdict("unknown", "the driver does not report slowdowns")


def _check_each(text: str, rc: int, spec: NodeSpec, check: Any) -> Verdict:
    """Apply a check to each GPU. If nvidia-smi failed, the verdict is unknown; `check_gpus` reports the failure."""
    gpus = _visible_gpus(text, rc, spec)
    if isinstance(gpus, Verdict):
        return Verdict("unknown", gpus.seen)
    verdicts = [verdict for index, gpu in enumerate(gpus) for verdict in check(f"GPU {index}", gpu)]
    if any("processes" not in gpu.fields for gpu in gpus) and count_attached(text) is not None:
        verdicts.append(Verdict("unknown", "the output of nvidia-smi is cut short"))
    return worst(verdicts)


def check_links(text: str, rc: int, spec: NodeSpec) -> Verdict:
    """Check `nvidia-smi nvlink --status`: the number of links that are up on each GPU."""
    if failure := tool_failure(rc):
        return failure
    links: list[int] = []
    for line in text.splitlines():
        if re.match(r"GPU \d+:", line):
            links.append(0)
        elif links and re.match(r"\s+Link \d+: [\d.]+ GB/s", line):
            links[-1] += 1
    if rc or not links:
        return Verdict("unknown", "no NVLink status")
    if min(links) < max(links):
        seen = f"GPU {links.index(min(links))} has {min(links)} links up, another GPU of the node {max(links)}"
        return Verdict("bad", seen)
    # Zero links are normal for PCIe cards; the comparison between nodes decides.
    facts = {"links up on each GPU": str(min(links))}
    return Verdict("ok" if min(links) else "unknown", f"{min(links)} links up on each GPU", facts)


def check_xid(text: str, rc: int, spec: NodeSpec) -> Verdict:
    """Check the kernel log of the last 24 hours; its first line is `uptime <seconds>`."""
    uptime = re.search(r"^uptime ([\d.]+)", text, re.MULTILINE)
    if rc or not uptime:
        return Verdict("unknown", "no permission to read the kernel log")
    counts: dict[int, int] = {}
    fatal_switch = flaps = 0
    for line in text.splitlines():
        if _age_s(line, float(uptime[1]), spec.checked_at[1]) > _DAY_S:
            continue
        if xid := re.search(r"NVRM: Xid \([^)]*\): (\d+)", line):
            counts[int(xid[1])] = counts.get(int(xid[1]), 0) + 1
        fatal_switch += bool(re.search(r"SXid \([^)]*\): \d+, Fatal", line))
        flaps += "lost carrier" in line or bool(re.search(r"\bLink down$", line))
    verdicts = [Verdict("ok", "no hardware error")]
    for state, xids in (("bad", BAD_XIDS), ("warn", WARN_XIDS)):
        verdicts += [Verdict(state, f"Xid {xid}, {counts[xid]} times in 24 h") for xid in sorted(xids & counts.keys())]  # type: ignore[arg-type]
    verdicts += [Verdict("warn", f"{fatal_switch} fatal NVSwitch errors (SXid)")] if fatal_switch else []
    verdicts += [Verdict("warn", f"a network link went down {flaps} times")] if flaps >= _MIN_FLAPS else []
    return worst(verdicts)


def _age_s(line: str, uptime_s: float, now: float) -> float:
    """Return the age of a log line in seconds; 0 without a timestamp."""
    if match := re.match(r"\[ *(\d+\.\d+)\]", line):
        return uptime_s - float(match[1])
    if match := re.match(r"\[(\w{3} \w{3} +\d+ [\d:]+ \d{4})\]", line):
        try:
            return now - time.mktime(time.strptime(match[1], "%a %b %d %H:%M:%S %Y"))
        except (ValueError, OverflowError):
            return 0.0
    return 0.0


def check_dcgm(text: str, rc: int, spec: NodeSpec) -> Verdict:
    """Check `dcgmi diag -r 1 -j` of DCGM 3 and 4. Skipped tests are ignored, unless all were skipped."""
    if failure := tool_failure(rc):
        return failure
    try:
        tree = json.loads(text[text.index("{") :])
    except (ValueError, RecursionError):
        return Verdict("unknown", "the output of dcgmi cannot be parsed")
    diagnostic = tree.get("DCGM Diagnostic") or tree.get("DCGM GPU Diagnostic")
    categories = diagnostic.get("test_categories") if isinstance(diagnostic, dict) else None
    verdicts = []
    for test in (test for category in _dicts(categories) for test in _dicts(category.get("tests"))):
        for status in sorted({str(result.get("status")) for result in _dicts(test.get("results"))}):
            if status in _DCGM_STATES:
                verdicts.append(Verdict(_DCGM_STATES[status], f"{test.get('name')}: {status}"))
    return worst(verdicts) if verdicts else Verdict("unknown", "dcgmi ran no test")


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
