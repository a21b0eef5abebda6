"""Which nodes have a slow network: pairs of nodes measure each other, in two rounds. Pure.

The same judge looks at sockets and at all-reduces; a `Scale` says what is slow.

A slow pair blames nobody: each of its nodes is measured again with a partner that is well. Who is slow there, too, is
bad; where both are well, it is the link between the two.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slurm_rl.plugins.health.gate.verdict import Verdict

Pair = tuple[str, str]
Rates = Mapping[Pair, float | None]
"""How fast each pair was, in the unit of the scale; None: silent until the deadline."""
_MANY = 4


def usual_of(rates: Sequence[float]) -> float:
    """What is usual: the median; of a few the fastest, since a slow one of three nodes is in two of their three pairs.

    >>> usual_of([1.0, 9.0, 1.0]), usual_of([9.0, 1.0, 9.0, 12.0])
    (9.0, 9.0)
    """
    return statistics.median_high(rates) if len(rates) >= _MANY else max(rates)


@dataclass(frozen=True)
class Scale:
    """What is measured, and what is slow."""

    what: str
    unit: str
    slow: float
    """Part of what is usual."""
    plenty: float = math.inf
    """Never slow from here on."""
    odd: float = 0.0
    """Below this part of what is usual it is told."""
    usual: Callable[[Sequence[float]], float] = usual_of

    def show(self, rate: float | None) -> str:
        if rate is None:
            return "silence"
        return f"{rate:.0f} {self.unit}" if rate >= 100 else f"{rate:.3g} {self.unit}"


SOCKETS = Scale(
    "its network",
    "MB/s",
    slow=1 / 3,  # nodes that are busy may well be half as fast as others at times
    plenty=30.0,  # a quarter of what gigabit Ethernet does
    usual=max,  # of three or five nodes the slow one is in more than half of the pairs
)


def first_round(hosts: Sequence[str]) -> list[list[Pair]]:
    """Disjoint pairs, all at once; then the one that is left over, with the first; of three nodes all pairs.

    >>> first_round(["a", "b", "c"])
    [[('a', 'b')], [('c', 'a')], [('b', 'c')]]
    """
    rounds = [list(zip(hosts[::2], hosts[1::2], strict=False))]
    if len(hosts) % 2 and len(hosts) > 1:
        rounds.append([(hosts[-1], hosts[0])])
    return [*rounds, [(hosts[1], hosts[2])]] if len(hosts) == 3 else rounds


def is_slow(rate: float | None, rates: Rates, scale: Scale = SOCKETS) -> bool:
    known = [one for one in rates.values() if one is not None]
    if rate is None or not known:
        return True
    return rate < scale.plenty and rate < scale.slow * scale.usual(known)


def find_suspects(rates: Rates, scale: Scale = SOCKETS) -> list[str]:
    """Nodes of which every pair was slow."""
    slow = {pair for pair, rate in rates.items() if is_slow(rate, rates, scale)}
    well = {node for pair in rates.keys() - slow for node in pair}
    return [node for node in dict.fromkeys(node for pair in rates if pair in slow for node in pair) if node not in well]


def second_round(rates: Rates, scale: Scale = SOCKETS) -> list[list[Pair]]:
    """Each suspect with a node that is well, and no node twice at once; none where no node is well.

    >>> second_round({("a", "b"): 20.0, ("c", "d"): 900.0})
    [[('a', 'c'), ('b', 'd')]]
    """
    suspects = find_suspects(rates, scale)
    well = [node for node in dict.fromkeys(node for pair in rates for node in pair) if node not in suspects]
    if not well:
        return []
    starts = range(0, len(suspects), len(well))
    return [list(zip(suspects[start : start + len(well)], well, strict=False)) for start in starts]


def judge_pairs(
    hosts: Sequence[str], first: Rates, second: Rates, missing: Sequence[str] = (), scale: Scale = SOCKETS
) -> dict[str, Verdict]:
    """A verdict on each node.

    Args:
        first: of the first round.
        second: of the second one; a suspect is the first of its pair.
        missing: nodes that did not come.
    """
    found = {host: Verdict("ok", f"{scale.what} is as fast as others'") for host in hosts}
    for host in missing:
        found[host] = Verdict("bad", f"{scale.what} does not reach the controller")
    again = {pair[0]: (pair[1], rate) for pair, rate in second.items()}
    usual = scale.usual([rate for rate in first.values() if rate is not None] or [0.0])
    for pair, measured in first.items():
        if not is_slow(measured, first, scale):
            if measured is not None and measured < scale.odd * usual:
                words = f"{pair[0]} and {pair[1]}: {scale.show(measured)}, others {scale.show(usual)}"
                found |= {node: Verdict("warn", words) for node in pair if found[node].state == "ok"}
            continue
        guilty = [node for node in pair if node in again and is_slow(again[node][1], first, scale)]
        for node in guilty:
            partner, rate = again[node]
            other = pair[1] if node == pair[0] else pair[0]
            seen = f"{scale.show(measured)} with {other}, {scale.show(rate)} with {partner}"
            found[node] = Verdict("bad", f"{scale.what} is slow: {seen}")
        if not guilty:
            words = f"the link between {pair[0]} and {pair[1]}: {scale.show(measured)}"
            found |= {node: Verdict("warn", words) for node in pair}
    return found
