"""What a storm has shown: pure functions from what was written down to numbers and broken promises."""

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
"""Signs of a run that has noticed something."""


CONTROLLERS = ", the controller's node"
"""Ends the name of a lost node that its run's other nodes alone could miss, once their agents are there."""


@dataclass(frozen=True)
class Hit:
    """A fault that fell.

    >>> Hit(100.0, "node/power", "a2", 20.0).kind
    'node/power'
    """

    time: float
    kind: str
    victim: str
    lasts_s: float
    missed: str = ""
    """Why nothing was hit; "" for a hit."""


def find_seen(hit: Hit, signs: Iterable[Sign]) -> float | None:
    """Seconds until the run noticed; None for never.

    >>> find_seen(Hit(10.0, "rank/kill", "a2", 0.0), [Sign(9.0, "outcome", 1, {}), Sign(12.0, "node/died", 1, {})])
    2.0
    """
    return next(
        (round(sign.time - hit.time, 2) for sign in signs if sign.time >= hit.time and sign.what in NOTICES), None
    )


def find_recovered(hit: Hit, signs: Iterable[Sign], until: float = math.inf) -> float | None:
    """Seconds until a checkpoint was saved by an attempt that began after it; None for a run that just went on.

    Args:
        until: when the next fault fell, which an attempt after that is due to.
    """
    later = [sign for sign in signs if sign.time >= hit.time]
    if not any(sign.what == "attempt/started" and sign.time < until for sign in later):
        return None
    since = later[[sign.what for sign in later].index("attempt/started") :]
    return next((round(sign.time - hit.time, 1) for sign in since if sign.what == "checkpoint/saved"), None)


def expected_rows(num_steps: int, num_ranks: int) -> list[dict[str, Any]]:
    """What an undisturbed light run logs, but for times."""
    value, rows = 0.5, []
    for step in range(num_steps):
        value = advance(step, value)
        rows.append({"step": step + 1, "stage": "grpo", **{f"value/{rank}": value for rank in range(num_ranks)}})
    return rows


def strip_times(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """All that a resumed run must repeat in every digit."""
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]


def compare(found: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> str:
    """ "" when they are equal, else the first difference.

    >>> compare([{"step": 1, "a": 0.1}], [{"step": 1, "a": 0.2}])
    "row 1 is {'step': 1, 'a': 0.1} in place of {'step': 1, 'a': 0.2}"
    """
    for place, (one, other) in enumerate(zip(found, expected, strict=False), 1):
        if one != other:
            return f"row {place} is {dict(one)} in place of {dict(other)}"
    return "" if len(found) == len(expected) else f"{len(found)} rows in place of {len(expected)}"


def find_second_writer(epochs: Sequence[int]) -> str:
    """ "" when no epoch writes again once a higher one has; `epochs` in the order of writing.

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
    """Seconds of steps whose numbers are in the end's metrics, and of those that were done in vain.

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
    """Whether the newest attempt had begun to train: each of its agents was there.

    >>> was_training(Hit(10.0, "node/power", "a1", 20.0), [Sign(9.0, "attempt/started", 2, {})])
    False
    """
    before = [s.what for s in signs if s.time < hit.time and s.what in ("attempt/started", "trainer/started")]
    return before[-1:] == ["trainer/started"]


def find_late(hits: Iterable[Hit], signs: Sequence[Sign], limits: Mapping[str, float]) -> list[str]:
    """Faults that were noticed too late, by the promise that their kind is measured against."""
    late = []
    for hit in hits:
        limit = limits.get(BY_NAME[hit.kind].seen)
        if limit is None or hit.missed or (hit.victim.endswith(CONTROLLERS) and not was_training(hit, signs)):
            continue
        seen = find_seen(hit, signs)
        if seen is None or seen > limit:
            late.append(f"{hit.kind} of {hit.victim} must be seen within {limit:g} s; {_say(seen)}")
    return late


def render_table(storms: Iterable[tuple[Sequence[Hit], Sequence[Sign]]]) -> str:
    """One row a kind: how often, seconds until seen, seconds until trained and saved again.

    Args:
        storms: what fell and what was to be seen, of each run.
    """
    lines = ["| fault | fell | seen after, median (worst) | saved again after |", "|---|---|---|---|"]
    measured = [row for hits, signs in storms for row in _measure(hits, signs)]
    for kind, whose in itertools.product(BY_NAME, ("", CONTROLLERS)):
        those = [row for row in measured if row[0] == kind + whose]
        if those:
            seen = [row[1] for row in those] if BY_NAME[kind].seen else []
            lines.append(f"| {kind}{whose} | {len(those)} | {_spread(seen)} | {_spread([row[2] for row in those])} |")
    return "\n".join(lines)


def _measure(hits: Sequence[Hit], signs: Sequence[Sign]) -> Iterator[tuple[str, float | None, float | None]]:
    """Of each that hit: its kind and whose, seconds until seen, until saved again."""
    for hit, until in zip(hits, [*(later.time for later in hits[1:]), math.inf], strict=False):
        if not hit.missed:
            whose = CONTROLLERS if hit.victim.endswith(CONTROLLERS) else ""
            yield hit.kind + whose, find_seen(hit, signs), find_recovered(hit, signs, until)


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.1f} s ({max(known):.1f})" if known else "-"


def _say(seen: float | None) -> str:
    return "it never was" if seen is None else f"it took {seen:g} s"
