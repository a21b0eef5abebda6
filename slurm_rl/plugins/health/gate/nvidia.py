"""Verdicts on what nvidia-smi, dcgmi and the kernel say of NVIDIA's GPUs. Pure."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

from slurm_rl.plan.visibility import MASK_VARIABLES
from slurm_rl.plugins.health.doctor.gpus import choose_mine
from slurm_rl.plugins.health.doctor.smi import Gpu, count_attached, parse_nvidia_smi
from slurm_rl.plugins.health.gate.verdict import State, Verdict, Wanted, find_rc, worst

LATE = 124
"""Status of `timeout`."""
_USED_BYTES = 512 * 2**20
BAD_XIDS = frozenset({48, 54, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158})
"""The GPU must be reset, or the machine repaired. 13, 31, 43, 45 and 69 are faults of programs."""
WARN_XIDS = frozenset({63, 92, 94, 109, *range(144, 151)})
_DAY_S = 86400.0
_MIN_FLAPS = 3
_STATES: dict[str, State] = {"Pass": "ok", "Fail": "bad", "Warn": "warn"}


def _mine(text: str, rc: int, wanted: Wanted) -> list[Gpu] | Verdict:
    """The GPUs that this job got of those that nvidia-smi tells of; a verdict where it tells of none."""
    if late := find_rc(rc):
        return late
    if rc == LATE:
        return Verdict("bad", "nvidia-smi does not answer: a GPU hangs")
    gpus = parse_nvidia_smi(text)
    if re.search(r"Unable to determine the device handle|couldn't communicate with the NVIDIA driver", text) or rc:
        # A mask stands before what it says.
        said = " ".join(re.sub(r"^mask .*", "", text, flags=re.MULTILINE).split())
        return Verdict("bad", f"nvidia-smi: {said[:200] or f'exit status {rc}'}")
    if not gpus:
        return Verdict("unknown", "nvidia-smi says nothing that can be read")
    attached = count_attached(text)
    if attached is not None and attached > len(gpus) and len(gpus) < wanted.gpus:
        return Verdict("unknown", f"what nvidia-smi said was cut after {len(gpus)} of {attached} GPUs")
    mask = re.search(r"^mask (\S+)$", text, re.MULTILINE)
    return choose_mine(gpus, "nvidia", wanted.gpus, {MASK_VARIABLES["nvidia"]: mask[1]} if mask else {})


def read_gpus(text: str, rc: int, wanted: Wanted) -> Verdict:
    """Enough of them, of one kind, and nobody at work on them."""
    gpus = _mine(text, rc, wanted)
    if isinstance(gpus, Verdict):
        return gpus
    names = sorted({gpu.name for gpu in gpus})
    if "unknown" in names or any(gpu.memory_bytes is None for gpu in gpus):
        return Verdict("unknown", "nvidia-smi does not name all GPUs and their memory")
    seen, facts = f"{len(gpus)} x {', '.join(names)}", {"GPU": ", ".join(names)}
    if len(gpus) < wanted.gpus:
        return Verdict("bad", f"{seen}, not {wanted.gpus}", facts)
    return worst([Verdict("ok", seen, facts), *(_in_use(place, gpu) for place, gpu in enumerate(gpus))])


def _in_use(place: int, gpu: Gpu) -> Verdict:
    if gpu.num_compute:
        return Verdict("warn", f"GPU {place}: {gpu.num_compute} processes compute on it already")
    if (gpu.used_bytes or 0) > _USED_BYTES:
        return Verdict("warn", f"GPU {place}: {(gpu.used_bytes or 0) / 2**20:.0f} MiB are in use already")
    return Verdict("ok")


def read_recovery(text: str, rc: int, wanted: Wanted) -> Verdict:
    """What the driver says must be done with a GPU, from 570 on."""
    gpus = _mine(text, rc, wanted)
    if isinstance(gpus, Verdict):
        return Verdict("unknown", gpus.seen)
    return worst(_recovery(place, gpu.fields.get("gpu_recovery_action", "")) for place, gpu in enumerate(gpus))


def _recovery(place: int, action: str) -> Verdict:
    if action == "None":
        return Verdict("ok", "no action")
    is_known = action in ("Reset", "Reboot", "Drain P2P", "Drain and Reset", "GPU Reset", "Node Reboot Required")
    return Verdict("bad", f"GPU {place} needs: {action}") if is_known else Verdict("unknown", "the driver does not say")


def read_ecc(text: str, rc: int, wanted: Wanted) -> Verdict:
    gpus = _mine(text, rc, wanted)
    if isinstance(gpus, Verdict):
        return Verdict("unknown", gpus.seen)
    return worst(found for place, gpu in enumerate(gpus) for found in _ecc(place, gpu))


def _ecc(place: int, gpu: Gpu) -> Iterator[Verdict]:
    name, said = f"GPU {place}", gpu.fields
    failed = said.get("remapped_rows/remapping_failure_occurred", "")
    if failed == "Yes":
        yield Verdict("bad", f"{name}: a row of its memory could not be remapped")
    # "SRAM Uncorrectable" until 535, by parity and SECDED from then on.
    sram, dram = gpu.number("volatile/sram_uncorrectable"), gpu.number("volatile/dram_uncorrectable")
    if sram:
        yield Verdict("bad", f"{name}: {sram:g} uncorrectable errors of its SRAM since the driver was loaded")
    if any("threshold_exceeded" in key and value == "Yes" for key, value in said.items()):
        yield Verdict("bad", f"{name}: its SRAM has more errors than its maker allows")
    if dram:
        yield Verdict("warn", f"{name}: {dram:g} uncorrectable errors of its memory since the driver was loaded")
    if said.get("remapped_rows/pending") == "Yes":
        yield Verdict("warn", f"{name}: rows of its memory wait for a reset to be remapped")
    if said.get("retired_pages/pending_page_blacklist") == "Yes":
        yield Verdict("warn", f"{name}: pages of its memory wait for a reset to be retired")
    is_known = failed == "No" and sram is not None
    yield Verdict("ok", "no uncorrectable error") if is_known else Verdict("unknown", f"{name} does not count errors")


def read_clocks(text: str, rc: int, wanted: Wanted) -> Verdict:
    """One reading of an idle GPU is a hint and no proof, whatever it says of heat: never bad."""
    gpus = _mine(text, rc, wanted)
    if isinstance(gpus, Verdict):
        return Verdict("unknown", gpus.seen)
    slowed = [f"GPU {place}: {', '.join(gpu.slowdowns)}" for place, gpu in enumerate(gpus) if gpu.slowdowns]
    if slowed:
        return Verdict("warn", "; ".join(slowed))
    is_known = all(any(key.endswith("reasons/hw_slowdown") for key in gpu.fields) for gpu in gpus)
    return Verdict("ok", "no slowdown") if is_known else Verdict("unknown", "the driver names no reasons")


def read_links(text: str, rc: int, wanted: Wanted) -> Verdict:
    """`nvidia-smi nvlink --status`, or `dcgmi nvlink -s`: links that are up, for the other nodes to have as many."""
    if late := find_rc(rc):
        return late
    if "NvLink Link Status" in text:
        rows = [line.split() for line in text.splitlines() if re.fullmatch(r"\s+[UDX_]( [UDX_])+\s*", line)]
        down = sum(row.count("D") for row in rows)
        if not rows:
            return Verdict("unknown", "no links are told of")
        return Verdict("bad", f"{down} links are down") if down else Verdict("ok", f"{len(rows)} GPUs, no link down")
    links: list[int] = []
    for line in text.splitlines():
        if re.match(r"GPU \d+:", line):
            links.append(0)
        elif links and re.match(r"\s+Link \d+: [\d.]+ GB/s", line):
            links[-1] += 1
    if rc or not links:
        return Verdict("unknown", "no links are told of")
    if min(links) < max(links):
        return Verdict(
            "bad", f"GPU {links.index(min(links))} has {min(links)} links up, others of the node {max(links)}"
        )
    # None at all is right for cards on PCIe: the other nodes tell.
    facts = {"links up of each GPU": str(min(links))}
    return (
        Verdict("ok", f"{min(links)} links a GPU", facts) if min(links) else Verdict("unknown", "no link is up", facts)
    )


def read_xid(text: str, rc: int, wanted: Wanted) -> Verdict:
    """Lines of the kernel's log: first `uptime <s>`, then those of the last day count."""
    if rc or not (uptime := re.search(r"^uptime ([\d.]+)", text, re.MULTILINE)):
        return Verdict("unknown", "the kernel's log may not be read")
    found: dict[int, int] = {}
    fatal_switch = flaps = 0
    for line in text.splitlines():
        if _age_s(line, float(uptime[1]), wanted.asked[1]) > _DAY_S:
            continue
        if xid := re.search(r"NVRM: Xid \([^)]*\): (\d+)", line):
            found[int(xid[1])] = found.get(int(xid[1]), 0) + 1
        fatal_switch += bool(re.search(r"SXid \([^)]*\): \d+, Fatal", line))
        flaps += "lost carrier" in line or bool(re.search(r"\bLink down$", line))
    bad, odd = sorted(BAD_XIDS & found.keys()), sorted(WARN_XIDS & found.keys())
    verdicts = [Verdict("ok", "none that tells of hardware")]
    verdicts += [Verdict("bad", f"Xid {number}, {found[number]} times in 24 h") for number in bad]
    verdicts += [Verdict("warn", f"Xid {number}, {found[number]} times in 24 h") for number in odd]
    verdicts += [Verdict("warn", f"{fatal_switch} fatal errors of NVSwitch (SXid)")] if fatal_switch else []
    verdicts += [Verdict("warn", f"a link went down {flaps} times")] if flaps >= _MIN_FLAPS else []
    return worst(verdicts)


def _age_s(line: str, uptime_s: float, now: float) -> float:
    """0 of a line without a time."""
    if match := re.match(r"\[ *(\d+\.\d+)\]", line):
        return uptime_s - float(match[1])
    if match := re.match(r"\[(\w{3} \w{3} +\d+ [\d:]+ \d{4})\]", line):
        try:
            return now - time.mktime(time.strptime(match[1], "%a %b %d %H:%M:%S %Y"))
        except (ValueError, OverflowError):
            return 0.0
    return 0.0


def read_dcgm(text: str, rc: int, wanted: Wanted) -> Verdict:
    """`dcgmi diag -r 1 -j`, of DCGM 3 and 4."""
    if late := find_rc(rc):
        return late
    try:
        tree = json.loads(text[text.index("{") :])
    except (ValueError, RecursionError):
        return Verdict("unknown", "dcgmi says nothing that can be read")
    verdicts = [
        Verdict(_STATES.get(status, "unknown"), f"{test.get('name')}: {status}")
        for test in _find_tests(tree)
        for status in sorted({str(one.get("status")) for one in _dicts(test.get("results"))})
    ]
    told = [verdict for verdict in verdicts if verdict.state != "unknown"]
    # Skipped tests are no pass; beside others that ran they say nothing.
    return worst(told) if told else Verdict("unknown", "no test was run")


def _find_tests(tree: Any) -> Iterator[dict[str, Any]]:
    tree = tree if isinstance(tree, dict) else {}
    diag = tree.get("DCGM Diagnostic") or tree.get("DCGM GPU Diagnostic")
    for category in _dicts(diag.get("test_categories") if isinstance(diag, dict) else None):
        yield from _dicts(category.get("tests"))


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
