"""What the nodes' own GPUs compute and how they reduce together, in the run's image: who stands out. Pure.

A node answers `compute` with what its slowest rank did, {"tflops": 640.1, "is_same": true, "gpu": "NVIDIA H100 80GB
HBM3", "within_gb_s": 455.2}, or {"error": why}; pairs of nodes, and all of them at last, with {"gb_s": 47.3}. On a CPU
the same programs multiply smaller matrices and reduce by gloo, which shows what they find, and nothing of a GPU.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_rl.plugins.health.doctor.peaks import least_link_gb_s
from slurm_rl.plugins.health.gate.pairs import Scale
from slurm_rl.plugins.health.gate.verdict import Verdict, worst

Answer = Mapping[str, Any]
ON_GPUS = Scale("its all-reduce", "GB/s", slow=0.5, odd=0.75)
ON_CPUS = Scale("its all-reduce", "GB/s", slow=1 / 3, plenty=0.03)
"""Cores are shared with whoever is there; as for sockets."""
HOLDS_S = 86400.0
"""A node that passed is not tested again for so long."""
_LEAST_PEERS = 2
_PARTNERS = 3


@dataclass(frozen=True)
class FabricOutcome:
    """What came out."""

    verdicts: dict[str, dict[str, Verdict]] = field(default_factory=dict)
    """Node -> `matmul` and `fabric`."""
    gb_s: float | None = None
    """Bus bandwidth of one all-reduce over all nodes that are well; None where there was none."""

    @property
    def passed(self) -> list[str]:
        """Nodes that need no further test for a day."""
        return [node for node, of in self.verdicts.items() if of and all(one.state == "ok" for one in of.values())]


def choose_tested(hosts: Sequence[str], passed: Collection[str]) -> list[str]:
    """Who is tested: whoever did not pass, with as many of those that did as it takes to tell who is slow.

    >>> choose_tested(["a", "b", "c", "d", "e"], ["a", "b", "c", "d"])
    ['a', 'b', 'e']
    >>> choose_tested(["a", "b"], ["a", "b"])
    []
    """
    new = [host for host in hosts if host not in passed]
    partners = [host for host in hosts if host in passed][: max(_PARTNERS - len(new), len(new) % 2)]
    return [host for host in hosts if host in new or host in partners] if new else []


def merge_ranks(answers: Sequence[Answer | None]) -> dict[str, Any]:
    """A node's answer: the least of its ranks' numbers, what all of them find right, the first error.

    >>> merge_ranks([{"gb_s": 2.0, "is_right": True}, {"gb_s": 1.5, "is_right": True}])
    {'gb_s': 1.5, 'is_right': True}
    >>> merge_ranks([{"gb_s": 2.0}, None])
    {'error': 'rank 1 did not answer in time'}
    """
    for place, answer in enumerate(answers):
        if answer is None:
            return {"error": f"rank {place} did not answer in time"}
        if "error" in answer:
            return {"error": f"rank {place}: {answer['error']}"}
    found: dict[str, Any] = {}
    for answer in filter(None, answers):
        for name, value in answer.items():
            before = found.get(name, value)
            is_least = isinstance(value, bool | int | float) and isinstance(before, bool | int | float)
            found[name] = min(before, value) if is_least else before
    return found


def read_number(answer: Answer | None, name: str) -> float | None:
    value = None if answer is None else answer.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if is_number else None  # type: ignore[arg-type]


def judge_compute(said: Mapping[str, Answer | None], scale: Scale) -> dict[str, Verdict]:
    """The matmul and the all-reduce within each node, against the other nodes'."""
    return {node: _judge_node(node, answer, said, scale) for node, answer in said.items()}


def _judge_node(node: str, answer: Answer | None, said: Mapping[str, Answer | None], scale: Scale) -> Verdict:
    if answer is None or "error" in answer:
        return Verdict("bad", str((answer or {}).get("error") or "it did not answer in time")[:200])
    if answer.get("is_same") is False:
        return Verdict("bad", "the same product of matrices is another, or not finite, the second time")
    if answer.get("is_right") is False:
        return Verdict("bad", "an all-reduce within the node is not the sum")
    found = []
    for name, what, unit in (("tflops", "multiplies", "TFLOP/s"), ("within_gb_s", "reduces within the node", "GB/s")):
        own = read_number(answer, name)
        others = [rate for one, told in said.items() if one != node and (rate := read_number(told, name))]
        if own is None:
            continue
        usual = statistics.median_low(others) if len(others) >= _LEAST_PEERS else own
        words = f"{what} at {own:.3g} {unit}"
        state = "bad" if own < scale.slow * usual else "warn" if own < scale.odd * usual else "ok"
        found.append(Verdict(state, f"{words}, others {usual:.3g}" if state != "ok" else words))  # type: ignore[arg-type]
    within, least = read_number(answer, "within_gb_s"), None
    if within is not None:
        least = least_link_gb_s(str(answer.get("gpu", "")), int(read_number(answer, "num_ranks") or 1))
    if within is not None and least is not None and within < least:
        found.append(Verdict("warn", f"reduces within the node at {within:.3g} of at least {least:.3g} GB/s"))
    return worst(found) if found else Verdict("unknown", "its answer cannot be read")


def find_slow(said: Mapping[str, Answer | None], scale: Scale) -> list[str]:
    """Nodes to ask once more: a busy moment is no slow node."""
    return [node for node, verdict in judge_compute(said, scale).items() if verdict.state == "bad"]


def better(first: Answer | None, second: Answer | None) -> Answer | None:
    """Of two answers of a node, its best numbers; an error stays only where both are one.

    >>> better({"tflops": 1.0}, {"tflops": 2.0}), better({"error": "x"}, {"tflops": 2.0})
    ({'tflops': 2.0}, {'tflops': 2.0})
    """
    if first is None or second is None or "error" in first or "error" in second:
        return next((one for one in (first, second) if one is not None and "error" not in one), first or second)
    rates = ("tflops", "within_gb_s")
    best = {
        name: max(filter(None, (read_number(first, name), read_number(second, name))), default=None) for name in rates
    }
    return {**first, **second, **{name: rate for name, rate in best.items() if rate is not None}}
