"""Checks of a node's files, limits and disks, which need no vendor tool."""

import re
import statistics
from collections import Counter
from collections.abc import Mapping

from slurm_rl.node.limits import find_low_limits, read_locked_memory
from slurm_rl.plugins.health.verdict import NodeSpec, Verdict, worst

Verdicts = Mapping[str, Verdict]
"""Node -> verdict of one check."""
_LOW_KB, _TIGHT_KB = 1_000_000, 10_000_000
_FULL = 0.1
"""A small tmpfs is a setting of the site; only one that is also nearly full is a fault."""
_SKEW_S = 2.0
_RDMA_MEMLOCK = 16e9
DISK_BYTES = 8 << 20
DISK_TIMEOUT_S = 10
"""Deadline of one try."""
DISK_FAST_S = 0.5
"""A try as fast as this is not repeated."""
_ENOUGH_MB_S = 10.0
_SLOW_SHARE = 0.2
_MIN_PEERS = 2
_DISK_TRY = re.compile(r"^write (\w+) (\d+) (\d+\.\d+) (\d+\.\d+)$", re.MULTILINE)


def check_files(text: str, rc: int, spec: NodeSpec) -> Verdict:
    """Check the canary in the run directory, cluster.tmp_root, /dev/shm and the clock."""
    values = _parse_lines(text)
    if "clock" not in values:
        return Verdict("unknown", "its answer is incomplete")
    if values.get("canary") != spec.canary:
        return Verdict("bad", "does not see the run directory")
    verdicts = [Verdict("ok", "sees the run directory")]
    for name, where, least in (("tmp", "cluster.tmp_root", 0.0), ("shm", "/dev/shm", spec.shm_bytes)):
        if values.get(f"{name}_writable") != "yes":
            verdicts.append(Verdict("bad", f"cannot write to {where}"))
        verdicts.append(_check_space(where, values.get(f"{name}_kb", ""), least))
    return worst([*verdicts, _check_clock(values["clock"], spec)])


def _check_space(where: str, text: str, least_bytes: float) -> Verdict:
    match = re.fullmatch(r"(\d+) (\d+)", text)
    if not match:
        return Verdict("unknown", f"df does not report free space of {where}")
    size, free = int(match[1]), int(match[2])
    seen = f"{where} has {free / 1e6:.3g} GB free"
    if free * 1024 < least_bytes:
        return Verdict("bad", f"{seen}, ray.object_store_gb needs {least_bytes / 1e9:.3g}")
    if free < min(_LOW_KB, _FULL * size):
        return Verdict("bad", seen)
    return Verdict("warn" if free < min(_TIGHT_KB, _FULL * size) else "ok", seen)


def _check_clock(text: str, spec: NodeSpec) -> Verdict:
    try:
        now = float(text)
    except ValueError:
        return Verdict("unknown", "its clock cannot be read")
    begin, end = spec.checked_at
    skew = max(begin - now, now - end, 0.0)
    return Verdict("warn", f"its clock is {skew:.1f} s off") if skew > _SKEW_S else Verdict("ok", "its clock is right")


def check_start(text: str, rc: int, spec: NodeSpec) -> Verdict:
    """Check everything that the node agent needs to start: code, image, Python, file locks, limits."""
    values = _parse_lines(text)
    if "limits" not in values:
        return Verdict("unknown", "its answer is incomplete")
    verdicts = [Verdict("ok", "the agent can start", {"image": values["image"]} if values.get("image") else {})]
    if values.get("code") == "missing":
        verdicts.append(Verdict("bad", "does not see the code of the run"))
    if values.get("image") == "missing":
        verdicts.append(Verdict("bad", "does not see the image (container.image)"))
    if "ok" not in values.get("python", ""):
        seen = f"its Python does not start: {values.get('python') or 'no output'}"
        verdicts.append(Verdict("bad" if spec.needs_python else "warn", seen))
    elif "unlocked" in values["python"]:
        verdicts.append(Verdict("warn", "cannot lock files in the run directory"))
    memlock = read_locked_memory(text)
    if values.get("rdma", "0") != "0" and memlock is not None and memlock < _RDMA_MEMLOCK and spec.num_nodes > 1:
        verdicts.append(Verdict("warn", f"may lock {memlock / 1024:.0f} KiB of memory, too little for RDMA"))
    if low := find_low_limits(text):
        verdicts.append(Verdict("warn", f"its hard limits (ulimit -H -a) are low: {', '.join(low)}"))
    return worst(verdicts)


def _parse_lines(text: str) -> dict[str, str]:
    """Parse lines of `name value`; the first line of a name counts."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        values.setdefault(name, value.strip())
    return values


def compare_facts(verdicts: Verdicts) -> dict[str, Verdict]:
    """Mark nodes bad if their facts differ from those of most nodes."""
    counts = Counter(fact for verdict in verdicts.values() for fact in verdict.facts.items())
    usual = {name: value for (name, value), number in counts.items() if 2 * number > len(verdicts)}
    compared = {}
    for node, verdict in verdicts.items():
        others = [
            Verdict("bad", f"{name}: {value}, on most nodes {usual[name]}")
            for name, value in verdict.facts.items()
            if value != usual.get(name, value)
        ]
        compared[node] = worst([verdict, *others])
    return compared


def check_disks(text: str, rc: int, spec: NodeSpec) -> Verdict:
    """Compute the write speed in MB/s of each place from lines of `write <place> <status> <begin> <end>`."""
    tries: dict[str, list[float]] = {}
    for place, status, begin, end in _DISK_TRY.findall(text):
        seconds = float(end) - float(begin)
        is_valid = seconds >= DISK_TIMEOUT_S or int(status) == 0 < seconds
        tries.setdefault(place, []).extend([DISK_BYTES / 1e6 / seconds] if is_valid else [])
    if not tries:
        return Verdict("unknown", "no disk was measured")
    verdicts = []
    for place, rates in tries.items():
        if rates:
            state = "ok" if max(rates) >= _ENOUGH_MB_S else "warn"
            verdicts.append(Verdict(state, _speed(place, max(rates)), {place: f"{max(rates):.4g}"}))  # type: ignore[arg-type]
        else:
            verdicts.append(Verdict("unknown", f"the speed of {place} cannot be measured"))
    return worst(verdicts)


def compare_disks(verdicts: Verdicts) -> dict[str, Verdict]:
    """Mark a node bad if its disk is slow and those of the other nodes are not: a shared disk may be slow for all."""
    compared = dict(verdicts)
    for node, verdict in verdicts.items():
        for place, rate in verdict.facts.items():
            others = [
                float(peer.facts[place]) for name, peer in verdicts.items() if name != node and place in peer.facts
            ]
            usual = statistics.median_low(others) if len(others) >= _MIN_PEERS else 0.0
            if float(rate) < min(_ENOUGH_MB_S, _SLOW_SHARE * usual):
                slow = Verdict("bad", f"{_speed(place, float(rate))}, others {usual:.3g}")
                compared[node] = worst([compared[node], slow])
    return compared


def _speed(place: str, rate: float) -> str:
    return f"writes to {place} at {rate:.3g} MB/s"
