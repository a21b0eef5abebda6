"""Judge GPUs and interconnect by the work of a run: matrix products and all-reduces in the run's image.

Each node prints its answers as JSON lines (see fabric_node.py):

    {"rank": 3, "task": "compute", "tflops": 640.1, "is_same": true, "gpu": "NVIDIA H100", "within_gb_s": 455.2}
    {"rank": 3, "task": "pair", "peer": 2, "gb_s": 47.3, "is_right": true}
    {"rank": 3, "task": "all", "error": "rank 0 did not answer in time"}

A slow pair of nodes proves nothing about either of them, so each node is measured with several partners. A node that is
slow with all of them is bad; if both nodes are fast with others, the link between them is slow. On a CPU the same code
runs smaller matrices and gloo.
"""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_rl.node.gpu_peaks import find_peak
from slurm_rl.plugins.health.verdict import Verdict, worst

Answer = Mapping[str, Any]
Pair = tuple[str, str]
_MIN_PEERS = 2
_MANY = 4
_ROUNDS = 3


@dataclass(frozen=True)
class Scale:
    """Thresholds, as shares of the typical rate."""

    slow: float
    plenty_gb_s: float = math.inf
    """Rate from which on a pair is never slow."""
    odd: float = 0.0
    """Share below which a rate is a warning."""


ON_GPUS, ON_CPUS = Scale(slow=0.5, odd=0.75), Scale(slow=1 / 3, plenty_gb_s=0.03)


@dataclass(frozen=True)
class FabricResult:
    """Result of the measurement."""

    verdicts: dict[str, dict[str, Verdict]] = field(default_factory=dict)
    """Node -> `matmul` and `fabric`."""
    gb_s: float | None = None
    """Bus bandwidth of an all-reduce over all nodes; None if it did not run."""


def pair_up(number: int) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs, in which each node meets another partner in each round (the circle method).

    >>> pair_up(2), pair_up(3), pair_up(4)[0]
    ([[(0, 1)]], [[(1, 2)], [(0, 1)], [(0, 2)]], [(0, 3), (1, 2)])
    """
    size = number + number % 2
    rounds = []
    for turn in range(min(_ROUNDS + number % 2, size - 1)):
        ring = [0, *((place + turn) % (size - 1) + 1 for place in range(size - 1))]
        pairs = (sorted((ring[place], ring[size - 1 - place])) for place in range(size // 2))
        rounds.append([(first, second) for first, second in pairs if second < number])
    return rounds


def merge_ranks(answers: Sequence[Answer | None]) -> dict[str, Any]:
    """Return the answer of a node: the minimum of its ranks' values, or the first error.

    >>> merge_ranks([{"gb_s": 2.0, "is_right": True}, {"gb_s": 1.5, "is_right": True}])
    {'gb_s': 1.5, 'is_right': True}
    >>> merge_ranks([{"gb_s": 2.0}, None])
    {'error': 'rank 1 did not answer in time'}
    """
    merged: dict[str, Any] = {}
    for rank, answer in enumerate(answers):
        if answer is None:
            return {"error": f"rank {rank} did not answer in time"}
        if "error" in answer:
            return {"error": f"rank {rank}: {answer['error']}"}
        for name, value in answer.items():
            is_number = isinstance(value, bool | int | float) and name in merged
            merged[name] = min(merged[name], value) if is_number else value
    return merged


def read_number(answer: Answer | None, name: str) -> float | None:
    """Return a positive, finite number of an answer; None for anything else."""
    value = (answer or {}).get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if is_number else None  # type: ignore[arg-type]


def judge_fabric(lines: Mapping[str, Sequence[str]], hosts: Sequence[str], *, on_gpus: bool) -> FabricResult:
    """Judge all nodes by the lines that they printed.

    Args:
        lines: lines of each node that answered.
        hosts: nodes that were asked; a single node has no verdict `fabric`.
    """
    scale = ON_GPUS if on_gpus else ON_CPUS
    answers = {host: _parse(lines.get(host, ())) for host in hosts}
    compute = {host: next((one for one in answers[host] if one.get("task") == "compute"), None) for host in hosts}
    verdicts = {host: {"matmul": verdict} for host, verdict in judge_compute(compute, scale).items()}
    able = [host for host in hosts if compute[host] is not None and "error" not in (compute[host] or {})]
    if len(hosts) < 2:
        return FabricResult(verdicts)
    # A slow processor also slows the all-reduces of its partners.
    fit = [host for host in able if verdicts[host]["matmul"].state != "bad"]
    rates = {pair: rate for pair, rate in _read_pairs(answers).items() if set(pair) <= set(fit)}
    fabric = judge_pairs(fit, rates, scale)
    whole = [one for host in hosts for one in answers[host] if one.get("task") == "all"]
    errors = [str(one.get("error", "a wrong sum")) for one in whole if _rate(one) is None]
    if errors:
        seen = f"an all-reduce over {len(able)} nodes whose pairs are healthy: {errors[0]}"
        fabric |= dict.fromkeys(fit, Verdict("bad", seen))
    for host, verdict in fabric.items():
        verdicts[host]["fabric"] = verdict
    return FabricResult(verdicts, None if errors else min(filter(None, map(_rate, whole)), default=None))


def _parse(lines: Iterable[str]) -> list[Answer]:
    answers: list[Answer] = []
    for line in lines:
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(answer, dict) and isinstance(answer.get("rank"), int):
            answers.append(answer)
    return answers


def _read_pairs(answers: Mapping[str, Sequence[Answer]]) -> dict[Pair, float | None]:
    """Return the rate of each pair; None if it hangs, fails, or has a wrong sum."""
    hosts = {one["rank"]: host for host, of in answers.items() for one in of}
    rates: dict[Pair, float | None] = {}
    for of in answers.values():
        for one in of:
            if one.get("task") == "pair" and one.get("peer") in hosts:
                first, second = sorted((one["rank"], one["peer"]))
                pair, rate = (hosts[first], hosts[second]), _rate(one)
                known = rates.get(pair, rate)
                rates[pair] = None if rate is None or known is None else min(rate, known)
    return rates


def _rate(answer: Answer) -> float | None:
    return None if answer.get("is_right") is False else read_number(answer, "gb_s")


def judge_compute(answers: Mapping[str, Answer | None], scale: Scale) -> dict[str, Verdict]:
    """Compare products and all-reduces within a node with those of other nodes; products also with the data sheet."""
    return {node: _judge_node(node, answers, scale) for node in answers}


def _judge_node(node: str, answers: Mapping[str, Answer | None], scale: Scale) -> Verdict:
    answer = answers[node]
    if answer is None or "error" in answer:
        return Verdict("bad", str((answer or {}).get("error") or "it did not answer in time")[:200])
    if answer.get("is_same") is False:
        return Verdict("bad", "a matrix product differs when it is repeated, or is not finite")
    if answer.get("is_right") is False:
        return Verdict("bad", "an all-reduce within the node has a wrong sum")
    peak = find_peak(str(answer.get("gpu", "")))
    sheet = {"tflops": peak.least_share * peak.tflops if peak else None}
    verdicts = []
    for name, verb, unit in (("tflops", "multiplies", "TFLOP/s"), ("within_gb_s", "reduces within the node", "GB/s")):
        own = read_number(answer, name)
        if own is None:
            continue
        others = [rate for peer in answers if peer != node and (rate := read_number(answers[peer], name))]
        typical = statistics.median_low(others) if len(others) >= _MIN_PEERS else own
        seen, least = f"{verb} at {own:.3g} {unit}", sheet.get(name)
        state = "bad" if own < scale.slow * typical else "warn" if own < scale.odd * typical else "ok"
        verdicts.append(Verdict(state, f"{seen}, others {typical:.3g}" if state != "ok" else seen))  # type: ignore[arg-type]
        if least and own < least:
            verdicts.append(Verdict("warn", f"{verb} at {own:.3g} of at least {least:.3g} {unit}"))
    return worst(verdicts) if verdicts else Verdict("unknown", "its answer cannot be parsed")


def judge_pairs(hosts: Sequence[str], rates: Mapping[Pair, float | None], scale: Scale) -> dict[str, Verdict]:
    """Return a verdict on each node by the rates of its pairs."""
    known = [rate for rate in rates.values() if rate is not None]
    # A slow node of three is in two of their three pairs.
    typical = max(known, default=0.0) if len(known) < _MANY else statistics.median_high(known)
    slow = {pair for pair, rate in rates.items() if rate is None or rate < min(scale.slow * typical, scale.plenty_gb_s)}
    healthy = {node for pair in rates.keys() - slow for node in pair}
    verdicts: dict[str, Verdict] = {}
    for host in hosts:
        found = [Verdict("ok", "its all-reduce is as fast as others'")]
        own = {pair: rate for pair, rate in rates.items() if host in pair}
        if not own:
            verdicts[host] = Verdict("unknown", "no partner was healthy")
            continue
        if host not in healthy:
            seen = ", ".join(f"{_show(rate)} with {pair[host == pair[0]]}" for pair, rate in own.items())
            verdicts[host] = Verdict("bad", f"its all-reduce is slow: {seen}")
            continue
        for pair, rate in own.items():
            if pair in slow and healthy.issuperset(pair):
                found.append(Verdict("warn", f"the link between {pair[0]} and {pair[1]}: {_show(rate)}"))
            elif pair not in slow and rate is not None and rate < scale.odd * typical:
                seen = f"{pair[0]} and {pair[1]}: {_show(rate)}, others {_show(typical)}"
                found.append(Verdict("warn", seen))
        verdicts[host] = worst(found)
    return verdicts


def _show(rate: float | None) -> str:
    return "no answer" if rate is None else f"{rate:.3g} GB/s"
