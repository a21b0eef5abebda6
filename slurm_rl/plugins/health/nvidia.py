"""Checks on the output of `nvidia-smi -q`."""

import re
from collections.abc import Callable, Iterator

from slurm_rl.plugins.health.gpus import Gpu, count_attached, judge_gpus, parse_nvidia_smi, select_visible
from slurm_rl.plugins.health.verdict import TIMED_OUT, NodeSpec, Verdict, tool_failure, worst

_RECOVERIES = ("Reset", "Reboot", "Drain P2P", "Drain and Reset", "GPU Reset", "Node Reboot Required")
_SLOWDOWNS = ("HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown", "SW Thermal Slowdown")


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
    return select_visible(gpus, "nvidia", spec.gpus, text)


def check_gpus(text: str, rc: int, spec: NodeSpec) -> Verdict:
    """Check number, type, memory and use of the GPUs."""
    gpus = _visible_gpus(text, rc, spec)
    if isinstance(gpus, Verdict):
        return gpus
    if any(gpu.name == "unknown" or gpu.memory_bytes is None for gpu in gpus):
        return Verdict("unknown", "nvidia-smi does not report name and memory of all GPUs")
    return judge_gpus(gpus, len(gpus), spec)


def check_ecc(text: str, rc: int, spec: NodeSpec) -> Verdict:
    """Check memory errors, remapped rows, retired pages, and the recovery that the driver (570 and newer) requests."""
    return _check_each(text, rc, spec, _check_ecc)


def _check_ecc(name: str, gpu: Gpu) -> Iterator[Verdict]:
    fields = gpu.fields
    if fields.get("gpu_reset_status/reset_required") == "Yes":
        yield Verdict("bad", f"{name} must be reset")
    if (action := fields.get("gpu_recovery_action")) in _RECOVERIES:
        yield Verdict("bad", f"{name} needs: {action}")
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


def _check_each(text: str, rc: int, spec: NodeSpec, check: Callable[[str, Gpu], Iterator[Verdict]]) -> Verdict:
    """Apply a check to each GPU. If nvidia-smi failed, the verdict is unknown; `check_gpus` reports the failure."""
    gpus = _visible_gpus(text, rc, spec)
    if isinstance(gpus, Verdict):
        return Verdict("unknown", gpus.seen)
    verdicts = [verdict for index, gpu in enumerate(gpus) for verdict in check(f"GPU {index}", gpu)]
    if any("processes" not in gpu.fields for gpu in gpus) and count_attached(text) is not None:
        verdicts.append(Verdict("unknown", "the output of nvidia-smi is cut short"))
    return worst(verdicts)
