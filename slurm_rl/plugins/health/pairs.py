"""Find nodes with a slow network by measuring pairs of nodes in two rounds.

A slow pair proves nothing about either node, so each is measured again with a healthy partner. A node that is slow
again is bad; if neither is, the link between the two is slow.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_rl.plugins.health.verdict import Verdict

Pair = tuple[str, str]
Rates = Mapping[Pair, float | None]
"""Rate of each pair in the unit of the scale; None for a timeout."""
Measure = Callable[[Iterable[Pair]], dict[Pair, float | None]]
_MANY = 4
RETRIES = 2
"""Repetitions of a slow measurement: a busy moment does not make a slow network."""


def typical_rate(rates: Sequence[float]) -> float:
    """Return the median; of a few rates the maximum, since a slow node of three is in two of their three pairs.

    >>> typical_rate([1.0, 9.0, 1.0]), typical_rate([9.0, 1.0, 9.0, 12.0])
    (9.0, 9.0)
    """
    return statistics.median_high(rates) if len(rates) >= _MANY else max(rates)


@dataclass(frozen=True)
class Scale:
    """Thresholds of a measurement."""

    subject: str
    unit: str
    slow: float
    """Share of the typical rate below which a rate is slow."""
    plenty: float = math.inf
    """Rate from which on a pair is never slow."""
    odd: float = 0.0
    """Share of the typical rate below which a rate is reported as a warning."""

    def show(self, rate: float | None) -> str:
        if rate is None:
            return "no answer"
        return f"{rate:.0f} {self.unit}" if rate >= 100 else f"{rate:.3g} {self.unit}"


def first_round(hosts: Sequence[str]) -> list[list[Pair]]:
    """Return disjoint pairs to measure at once, then the odd node with the first; all pairs of three nodes.

    >>> first_round(["a", "b", "c"])
    [[('a', 'b')], [('c', 'a')], [('b', 'c')]]
    """
    rounds = [list(zip(hosts[::2], hosts[1::2], strict=False))]
    if len(hosts) % 2 and len(hosts) > 1:
        rounds.append([(hosts[-1], hosts[0])])
    return [*rounds, [(hosts[1], hosts[2])]] if len(hosts) == 3 else rounds


def is_slow(rate: float | None, rates: Rates, scale: Scale) -> bool:
    """Return whether a rate is slow compared with the rates of the first round."""
    known = [rate for rate in rates.values() if rate is not None]
    if rate is None or not known:
        return True
    return rate < scale.plenty and rate < scale.slow * typical_rate(known)


def find_suspects(rates: Rates, scale: Scale) -> list[str]:
    """Return the nodes with slow pairs only."""
    slow = [pair for pair, rate in rates.items() if is_slow(rate, rates, scale)]
    healthy = {node for pair in rates.keys() - set(slow) for node in pair}
    return [node for node in dict.fromkeys(node for pair in slow for node in pair) if node not in healthy]


def second_round(rates: Rates, scale: Scale) -> list[list[Pair]]:
    """Pair each suspect with a healthy node, no node twice at once; empty if no node is healthy.

    >>> second_round({("a", "b"): 20.0, ("c", "d"): 900.0}, Scale("it", "GB/s", slow=0.5))
    [[('a', 'c'), ('b', 'd')]]
    """
    suspects = find_suspects(rates, scale)
    healthy = [node for node in dict.fromkeys(node for pair in rates for node in pair) if node not in suspects]
    if not healthy:
        return []
    starts = range(0, len(suspects), len(healthy))
    return [list(zip(suspects[start : start + len(healthy)], healthy, strict=False)) for start in starts]


def measure_rounds(measure: Measure, hosts: Sequence[str], scale: Scale) -> tuple[Rates, Rates]:
    """Measure both rounds and return their rates."""
    first = {pair: rate for pairs in first_round(hosts) for pair, rate in measure(pairs).items()}
    second: dict[Pair, float | None] = {}
    for pairs in second_round(first, scale):
        second |= measure(pairs)
        for _ in range(RETRIES):
            slow = [pair for pair in pairs if second.get(pair) is not None and is_slow(second[pair], first, scale)]
            for pair, rate in measure(slow).items():
                second[pair] = max(second[pair] or 0.0, rate or 0.0)
    return first, second


def judge_pairs(hosts: Sequence[str], first: Rates, second: Rates, scale: Scale) -> dict[str, Verdict]:
    """Return a verdict on each node.

    Args:
        second: rates of the second round, with the suspect first in each pair.
    """
    verdicts = {host: Verdict("ok", f"{scale.subject} is as fast as others'") for host in hosts}
    retried = {suspect: (partner, rate) for (suspect, partner), rate in second.items()}
    typical = typical_rate([rate for rate in first.values() if rate is not None] or [0.0])
    for pair, rate in first.items():
        if not is_slow(rate, first, scale):
            if rate is not None and rate < scale.odd * typical:
                seen = f"{pair[0]} and {pair[1]}: {scale.show(rate)}, others {scale.show(typical)}"
                verdicts |= {node: Verdict("warn", seen) for node in pair if verdicts[node].state == "ok"}
            continue
        guilty = [node for node in pair if node in retried and is_slow(retried[node][1], first, scale)]
        for node in guilty:
            other = pair[1] if node == pair[0] else pair[0]
            partner, again = retried[node]
            seen = f"{scale.show(rate)} with {other}, {scale.show(again)} with {partner}"
            verdicts[node] = Verdict("bad", f"{scale.subject} is slow: {seen}")
        if not guilty:
            seen = f"the link between {pair[0]} and {pair[1]}: {scale.show(rate)}"
            verdicts |= {node: Verdict("warn", seen) for node in pair}
    return verdicts
