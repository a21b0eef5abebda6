"""Judge GPUs and interconnect by the work of a run: matrix products and all-reduces in the run's image.

Each node answers `compute` with the results of its slowest rank, {"tflops": 640.1, "is_same": true, "gpu": "NVIDIA H100
80GB HBM3", "within_gb_s": 455.2}, or with {"error": text}. On a CPU the same code runs smaller matrices and gloo.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_rl.node.gpu_peaks import find_peak, least_link_gb_s
from slurm_rl.plugins.health.pairs import Scale
from slurm_rl.plugins.health.verdict import Verdict, worst

Answer = Mapping[str, Any]
ON_GPUS = Scale("its all-reduce", "GB/s", slow=0.5, odd=0.75)
ON_CPUS = Scale("its all-reduce", "GB/s", slow=1 / 3, plenty=0.03)
HOLDS_S = 86400.0
"""Seconds for which a node that passed is not measured again."""
_MIN_PEERS = 2
_PARTNERS = 3


@dataclass(frozen=True)
class FabricResult:
    """Result of the measurement."""

    verdicts: dict[str, dict[str, Verdict]] = field(default_factory=dict)
    """Node -> `matmul` and `fabric`."""
    gb_s: float | None = None
    """Bus bandwidth of an all-reduce over all healthy nodes; None if it did not run."""

    @property
    def passed(self) -> list[str]:
        """Nodes that passed both checks."""
        return [node for node, of in self.verdicts.items() if of and all(one.state == "ok" for one in of.values())]


def choose_tested(hosts: Sequence[str], passed: Collection[str]) -> list[str]:
    """Return the nodes to measure: those that have not passed, with enough of the others as partners.

    >>> choose_tested(["a", "b", "c", "d", "e"], ["a", "b", "c", "d"])
    ['a', 'b', 'e']
    >>> choose_tested(["a", "b"], ["a", "b"])
    []
    """
    new = [host for host in hosts if host not in passed]
    partners = [host for host in hosts if host in passed][: max(_PARTNERS - len(new), len(new) % 2)]
    return [host for host in hosts if host in new or host in partners] if new else []


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


def judge_compute(answers: Mapping[str, Answer | None], scale: Scale) -> dict[str, Verdict]:
    """Compare matrix products and all-reduces within the node with those of the other nodes and of the data sheet."""
    return {node: _judge_node(node, answers, scale) for node in answers}


def _judge_node(node: str, answers: Mapping[str, Answer | None], scale: Scale) -> Verdict:
    answer = answers[node]
    if answer is None or "error" in answer:
        return Verdict("bad", str((answer or {}).get("error") or "it did not answer in time")[:200])
    if answer.get("is_same") is False:
        return Verdict("bad", "a matrix product differs when it is repeated, or is not finite")
    if answer.get("is_right") is False:
        return Verdict("bad", "an all-reduce within the node has a wrong sum")
    gpu, ranks = str(answer.get("gpu", "")), int(read_number(answer, "num_ranks") or 1)
    peak = find_peak(gpu)
    sheet = {"tflops": peak and peak.least_share * peak.tflops, "within_gb_s": least_link_gb_s(gpu, ranks)}
    verdicts = []
    for name, verb, unit in (("tflops", "multiplies", "TFLOP/s"), ("within_gb_s", "reduces within the node", "GB/s")):
        own = read_number(answer, name)
        if own is None:
            continue
        others = [rate for peer in answers if peer != node and (rate := read_number(answers[peer], name))]
        typical = statistics.median_low(others) if len(others) >= _MIN_PEERS else own
        seen, least = f"{verb} at {own:.3g} {unit}", sheet[name]
        state = "bad" if own < scale.slow * typical else "warn" if own < scale.odd * typical else "ok"
        verdicts.append(Verdict(state, f"{seen}, others {typical:.3g}" if state != "ok" else seen))  # type: ignore[arg-type]
        if least and own < least:
            verdicts.append(Verdict("warn", f"{verb} at {own:.3g} of at least {least:.3g} {unit}"))
    return worst(verdicts) if verdicts else Verdict("unknown", "its answer cannot be parsed")


def best_answer(first: Answer | None, second: Answer | None) -> Answer | None:
    """Return the better numbers of two answers of a node; an error only if both are errors.

    >>> best_answer({"tflops": 1.0}, {"tflops": 2.0}), best_answer({"error": "x"}, {"tflops": 2.0})
    ({'tflops': 2.0}, {'tflops': 2.0})
    """
    if first is None or second is None or "error" in first or "error" in second:
        return next((one for one in (first, second) if one is not None and "error" not in one), first or second)
    rates = {name: max(read_number(one, name) or 0.0 for one in (first, second)) for name in ("tflops", "within_gb_s")}
    return {**first, **second, **{name: rate for name, rate in rates.items() if rate}}
