"""Verdicts on how fast a node writes to the disks of a run: a line a try, with its status and the time around it. Pure.

    write run_dir 0 1740327900.104210 1740327900.203301
    write tmp_root 124 1740327901.000012 1740327911.001734

A node is bad whose every try is slower than `_PLENTY_MB_S` and than a fifth of what the others do: a disk that all of
them share may be slow for all, which is told and blames nobody.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping

from slurm_rl.plugins.health.gate.verdict import Verdict, Wanted, worst

NUM_BYTES = 8 << 20
TIMEOUT_S = 10
"""Of one try."""
WELL_S = 0.5
"""A try as quick as this needs no other."""
_LATE = 124
_PLENTY_MB_S = 10.0
_SLOW = 0.2
_LEAST_PEERS = 2
_TRY = re.compile(r"^write (\w+) (\d+) (\d+\.\d+) (\d+\.\d+)$", re.MULTILINE)


def read_disks(text: str, rc: int, wanted: Wanted) -> Verdict:
    """The best try of each place, in MB/s."""
    tries: dict[str, list[float | None]] = {}
    for place, status, begin, end in _TRY.findall(text):
        seconds = float(end) - float(begin)
        is_known = int(status) in (0, _LATE) and seconds > 0
        tries.setdefault(place, []).append(NUM_BYTES / 1e6 / seconds if is_known else None)
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
