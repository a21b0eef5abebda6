"""Evaluate a storm: pure functions from recorded signs to numbers and violated guarantees."""

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.chaos.kinds import BY_NAME
from benchmarks.chaos.light_node import advance
from benchmarks.chaos.watch import Sign

NOTICES = (
    *("node/died", "node/failed", "node/unfit", "nodes/lost", "slurm/down", "attempt/started", "attempt/ended"),
    *("record/ending", "outcome", "trainer/crashed", "controller/killed"),
    *("rank/hung", "rank/straggling", "engine/replaced", "controller/silent"),
)
"""Signs that a run has noticed a fault."""


CONTROLLERS = ", the controller's node"
"""Suffix of the name of a lost node with the controller, which only the other nodes can detect."""


@dataclass(frozen=True)
class Hit:
    """An injected fault.

    >>> Hit(100.0, "node/power", "a2", 20.0).kind
    'node/power'
    """

    time: float
    kind: str
    victim: str
    lasts_s: float
    missed: str = ""
    """Reason why nothing was hit; "" for a hit."""


def seconds_to_notice(hit: Hit, signs: Iterable[Sign]) -> float | None:
    """Return seconds until the run noticed; None if it never did.

    >>> signs = [Sign(9.0, "outcome", 1, {}), Sign(12.0, "node/died", 1, {})]
    >>> seconds_to_notice(Hit(10.0, "rank/kill", "a2", 0.0), signs)
    2.0
    """
    return next(
        (round(sign.time - hit.time, 2) for sign in signs if sign.time >= hit.time and sign.what in NOTICES), None
    )


def seconds_to_recover(hit: Hit, signs: Iterable[Sign], until: float = math.inf) -> float | None:
    """Return seconds until an attempt started after the fault saved a checkpoint; None if the attempt continued.

    Args:
        until: time of the next fault, which causes all later attempts.
    """
    later = [sign for sign in signs if sign.time >= hit.time]
    if not any(sign.what == "attempt/started" and sign.time < until for sign in later):
        return None
    since = later[[sign.what for sign in later].index("attempt/started") :]
    return next((round(sign.time - hit.time, 1) for sign in since if sign.what == "checkpoint/saved"), None)


def expected_rows(num_steps: int, num_ranks: int) -> list[dict[str, Any]]:
    """Return the rows of an undisturbed light run, without times."""
    value, rows = 0.5, []
    for step in range(num_steps):
        value = advance(step, value)
        rows.append({"step": step + 1, "stage": "grpo", **{f"value/{rank}": value for rank in range(num_ranks)}})
    return rows


def strip_times(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the columns that a resumed run must repeat exactly."""
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]


def compare(found: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> str:
    """Return the first difference, or "" if both are equal.

    >>> compare([{"step": 1, "a": 0.1}], [{"step": 1, "a": 0.2}])
    "row 1 is {'step': 1, 'a': 0.1} in place of {'step': 1, 'a': 0.2}"
    """
    for place, (one, other) in enumerate(zip(found, expected, strict=False), 1):
        if one != other:
            return f"row {place} is {dict(one)} in place of {dict(other)}"
    return "" if len(found) == len(expected) else f"{len(found)} rows in place of {len(expected)}"


def find_second_writer(epochs: Sequence[int]) -> str:
    """Return an error if an epoch writes after a higher one, else ""; `epochs` is in order of writing.

    >>> find_second_writer([1, 1, 2, 3]), find_second_writer([1, 2, 1])
    ('', 'epoch 1 wrote after epoch 2')
    """
    highest = 0
    for epoch in epochs:
        if epoch < highest:
            return f"epoch {epoch} wrote after epoch {highest}"
        highest = epoch
    return ""


def find_surviving_seconds(rows_of_attempts: Iterable[Sequence[Mapping[str, Any]]]) -> tuple[float, float]:
    """Return seconds of steps that remain in the final metrics, and seconds of discarded steps.

    Args:
        rows_of_attempts: steps.jsonl of each attempt, in order.
    """
    last: dict[int, float] = {}
    total = 0.0
    for rows in rows_of_attempts:
        for row in rows:
            if row["stage"] not in ("save", "eval"):
                total += row["seconds"]
                last[row["step"]] = row["seconds"]
    return sum(last.values()), total - sum(last.values())


def was_training(hit: Hit, signs: Iterable[Sign]) -> bool:
    """Return whether all agents of the newest attempt had joined.

    >>> was_training(Hit(10.0, "node/power", "a1", 20.0), [Sign(9.0, "attempt/started", 2, {})])
    False
    """
    before = [s.what for s in signs if s.time < hit.time and s.what in ("attempt/started", "trainer/started")]
    return before[-1:] == ["trainer/started"]


def find_late(hits: Iterable[Hit], signs: Sequence[Sign], limits: Mapping[str, float]) -> list[str]:
    """Return the faults that were noticed later than guaranteed for their kind."""
    late = []
    for hit in hits:
        limit = limits.get(BY_NAME[hit.kind].detected_by)
        if limit is None or hit.missed or (hit.victim.endswith(CONTROLLERS) and not was_training(hit, signs)):
            continue
        seen = seconds_to_notice(hit, signs)
        if seen is None or seen > limit:
            late.append(f"{hit.kind} of {hit.victim} must be seen within {limit:g} s; {_say(seen)}")
    return late


def render_table(storms: Iterable[tuple[Sequence[Hit], Sequence[Sign]]]) -> str:
    """Render one row per kind: count, seconds until noticed, seconds until trained and saved again.

    Args:
        storms: hits and signs of each run.
    """
    lines = ["| fault | fell | seen after, median (worst) | saved again after |", "|---|---|---|---|"]
    measured = [row for hits, signs in storms for row in _measure(hits, signs)]
    for kind, whose in itertools.product(BY_NAME, ("", CONTROLLERS)):
        those = [row for row in measured if row[0] == kind + whose]
        if those:
            seen = [row[1] for row in those] if BY_NAME[kind].detected_by else []
            lines.append(f"| {kind}{whose} | {len(those)} | {_spread(seen)} | {_spread([row[2] for row in those])} |")
    return "\n".join(lines)


def _measure(hits: Sequence[Hit], signs: Sequence[Sign]) -> Iterator[tuple[str, float | None, float | None]]:
    """Yield kind and target of each hit, seconds until noticed, seconds until saved again."""
    for hit, until in zip(hits, [*(later.time for later in hits[1:]), math.inf], strict=False):
        if not hit.missed:
            whose = CONTROLLERS if hit.victim.endswith(CONTROLLERS) else ""
            yield hit.kind + whose, seconds_to_notice(hit, signs), seconds_to_recover(hit, signs, until)


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.1f} s ({max(known):.1f})" if known else "-"


def _say(seen: float | None) -> str:
    return "it never was" if seen is None else f"it took {seen:g} s"
