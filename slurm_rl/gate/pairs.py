"""Which nodes have a slow network: pairs of nodes measure each other, in two rounds. Pure.

A slow pair blames nobody: each of its nodes is measured again with a partner that is well. Who is slow there, too, is
bad; where both are well, it is the link between the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_rl.gate.verdict import Verdict

Pair = tuple[str, str]
Rates = Mapping[Pair, float | None]
"""Megabytes a second of the slower way; None: silent until the deadline."""
# Nodes that are busy may well be half as fast as others at times.
_SLOW = 1 / 3
# A quarter of what gigabit Ethernet does.
_PLENTY_MB_S = 30.0


def first_round(hosts: Sequence[str]) -> list[list[Pair]]:
    """Disjoint pairs, all at once; then the one that is left over, with the first; of three nodes all pairs.

    >>> first_round(["a", "b", "c"])
    [[('a', 'b')], [('c', 'a')], [('b', 'c')]]
    """
    rounds = [list(zip(hosts[::2], hosts[1::2], strict=False))]
    if len(hosts) % 2 and len(hosts) > 1:
        rounds.append([(hosts[-1], hosts[0])])
    return [*rounds, [(hosts[1], hosts[2])]] if len(hosts) == 3 else rounds


def is_slow(rate: float | None, rates: Rates) -> bool:
    known = [one for one in rates.values() if one is not None]
    if rate is None or not known:
        return True
    # Of three or five nodes the slow one is in more than half of the pairs: the median would be its own.
    return rate < _PLENTY_MB_S and rate < _SLOW * max(known)


def find_suspects(rates: Rates) -> list[str]:
    """Nodes of which every pair was slow."""
    slow = {pair for pair, rate in rates.items() if is_slow(rate, rates)}
    well = {node for pair in rates.keys() - slow for node in pair}
    return [node for node in dict.fromkeys(node for pair in rates if pair in slow for node in pair) if node not in well]


def second_round(rates: Rates) -> list[list[Pair]]:
    """Each suspect with a node that is well, and no node twice at once; none where no node is well.

    >>> second_round({("a", "b"): 20.0, ("c", "d"): 900.0})
    [[('a', 'c'), ('b', 'd')]]
    """
    suspects = find_suspects(rates)
    well = [node for node in dict.fromkeys(node for pair in rates for node in pair) if node not in suspects]
    if not well:
        return []
    starts = range(0, len(suspects), len(well))
    return [list(zip(suspects[start : start + len(well)], well, strict=False)) for start in starts]


def judge_pairs(hosts: Sequence[str], first: Rates, second: Rates, missing: Sequence[str] = ()) -> dict[str, Verdict]:
    """A verdict on each node.

    Args:
        first: of the first round.
        second: of the second one; a suspect is the first of its pair.
        missing: nodes that did not come.
    """
    found = {host: Verdict("ok", "its network is as fast as others'") for host in hosts}
    for host in missing:
        found[host] = Verdict("bad", "its network does not reach the controller")
    again = {pair[0]: (pair[1], rate) for pair, rate in second.items()}
    for pair in (pair for pair, rate in first.items() if is_slow(rate, first)):
        guilty = [node for node in pair if node in again and is_slow(again[node][1], first)]
        for node in guilty:
            partner, rate = again[node]
            other = pair[1] if node == pair[0] else pair[0]
            seen = f"{_show(first[pair])} with {other}, {_show(rate)} with {partner}"
            found[node] = Verdict("bad", f"its network is slow: {seen}")
        if not guilty:
            words = f"the link between {pair[0]} and {pair[1]}: {_show(first[pair])}"
            found |= {node: Verdict("warn", words) for node in pair}
    return found


def _show(rate: float | None) -> str:
    return "silence" if rate is None else f"{rate:.0f} MB/s"
