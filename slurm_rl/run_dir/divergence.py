"""Find a score on held-out rows that falls while the training reward rises. Standard library only."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from slurm_rl.run_dir.eval_sets import find_average, read_results
from slurm_rl.run_dir.jsonl import Row

_MIN_DROP = 0.05
_NUM_ERRORS = 3.0
"""Standard errors that a drop must exceed; the best of many evaluations is high by chance."""
_WINDOW = 10
"""Training steps in a mean of the reward."""


@dataclass(frozen=True)
class _Point:
    step: int
    value: float
    error: float
    """Standard error."""


def find_divergence(rows: Sequence[Row], num_held_out: int) -> list[str]:
    """Return one warning for each held-out score that fell from its best value while the reward rose.

    Args:
        num_held_out: rows that `accuracy/...` is measured on; 0 if unknown.
    """
    found = []
    for name, points in _curves(rows, num_held_out):
        best, last = max(points, key=lambda point: point.value), points[-1]
        drop = best.value - last.value
        if drop < max(_MIN_DROP, _NUM_ERRORS * math.hypot(best.error, last.error)):
            continue
        then, now = _mean_reward(rows, best.step, first=True), _mean_reward(rows, best.step, first=False)
        if then is not None and now is not None and now > then:
            found.append(
                f"{name} fell from {best.value:.3f} (step {best.step}) to {last.value:.3f} (step {last.step}) while "
                f"the reward rose from {then:.3f} to {now:.3f}. The policy may be gaming the reward: read "
                "`python -m slurm_rl samples`"
            )
    return found


def _curves(rows: Sequence[Row], num_held_out: int) -> Iterator[tuple[str, list[_Point]]]:
    """Yield name and points of each held-out score."""
    for kind in ("sampled", "greedy"):
        key = f"accuracy/{kind}"
        # Without a verifier of answers the accuracy is a mean reward, which has another error than a share.
        points = [
            _Point(row["step"], row[key], math.sqrt(max(0.0, row[key] * (1 - row[key])) / max(1, num_held_out)))
            for row in rows
            if key in row
        ]
        if points:
            yield f"held-out accuracy ({kind})", points
    for name, results in read_results(rows).items():
        scored = [(result, average) for result in results if (average := find_average(result)) is not None]
        if scored:
            points = [_Point(int(one["step"]), one[key], one.get(f"{key}_error", 0.0) / 1.96) for one, key in scored]
            yield f"{scored[0][1]} of the set {name}", points


def _mean_reward(rows: Sequence[Row], step: int, *, first: bool) -> float | None:
    """Return the mean reward of the first, or the last, training steps after `step`."""
    rewards = [row["reward/mean"] for row in rows if row["step"] > step and "reward/mean" in row]
    part = rewards[:_WINDOW] if first else rewards[-_WINDOW:]
    return fmean(part) if part else None
