"""Verdicts on how fast a node writes to the disks of a run: `dd` with fsync, as it prints it. Pure.

    write run_dir 0 8388608 bytes (8.4 MB, 8.0 MiB) copied, 0.0123 s, 682 MB/s
    write tmp_root 124

A node is bad whose every try is slower than `_PLENTY_MB_S` and than a fifth of what the others do: a disk that all of
them share may be slow for all, which is told and blames nobody.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping

from slurm_rl.gate.verdict import Verdict, Wanted, worst

NUM_BYTES = 8 << 20
TIMEOUT_S = 10
"""Of one try."""
WELL_S = 0.5
"""A try as quick as this needs no other."""
_LATE = 124
_PLENTY_MB_S = 10.0
_SLOW = 0.2
_LEAST_PEERS = 2
_TRY = re.compile(r"^write (\w+) (\d+)(?: (\d+) bytes .*copied, (\d+(?:\.\d+)?(?:e[+-]?\d+)?) s)?", re.MULTILINE)


def read_disks(text: str, rc: int, wanted: Wanted) -> Verdict:
    """The best try of each place, in MB/s."""
    tries: dict[str, list[float | None]] = {}
    for place, status, num_bytes, seconds in _TRY.findall(text):
        late = int(status) == _LATE
        known = num_bytes and seconds and float(seconds) > 0
        rate = int(num_bytes) / 1e6 / float(seconds) if known else NUM_BYTES / 1e6 / TIMEOUT_S if late else None
        tries.setdefault(place, []).append(rate)
    rates = {place: max((one for one in found if one is not None), default=None) for place, found in tries.items()}
    facts = {place: f"{rate:.4g}" for place, rate in rates.items() if rate is not None}
    found = [
        Verdict("unknown", f"{place}: its speed cannot be read")
        if rate is None
        else Verdict("warn", _say(place, rate))
        if rate < _PLENTY_MB_S
        else Verdict("ok", _say(place, rate))
        for place, rate in rates.items()
    ]
    verdict = worst(found) if found else Verdict("unknown", "no disk was written to")
    return Verdict(verdict.state, verdict.seen, facts)


def compare_disks(told: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Bad is who is slow where others are not."""
    found = dict(told)
    for node, verdict in told.items():
        slow = []
        for place, said in verdict.facts.items():
            others = [float(one.facts[place]) for name, one in told.items() if name != node and place in one.facts]
            usual = statistics.median_low(others) if len(others) >= _LEAST_PEERS else 0.0
            if float(said) < min(_PLENTY_MB_S, _SLOW * usual):
                slow.append(Verdict("bad", f"{_say(place, float(said))}, others {usual:.3g}"))
        found[node] = worst([verdict, *slow]) if slow else verdict
    return found


def _say(place: str, rate: float) -> str:
    return f"writes to {place} at {rate:.3g} MB/s"
