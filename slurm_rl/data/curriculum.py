"""A curriculum: each place of a step gets the first of its candidate rows that the policy solves sometimes. Pure.

candidates of a place     a (solved 1.0)   b (0.0 of 16)   c (0.4)   d (never seen)
taken                                                      c
"""

from collections.abc import Mapping, Sequence

from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.config.data import CurriculumConfig

Rates = Mapping[str, Sequence[float]]
"""Row id to (sum of its scores, number of samples), for sampled rows."""
_RANGE = 2**63


def choose_rows(
    candidates: Sequence[Sequence[int]],
    ids: Sequence[str],
    rates: Rates,
    config: CurriculumConfig,
    *,
    seed: int,
    position: int,
) -> list[int]:
    """Return one row per place, without repeating a row while a place has other candidates.

    Args:
        candidates: rows by place, in order of preference.
        seed: for the share `revisit` of places that take their first candidate.
        position: position of the first place.
    """
    chosen: list[int] = []
    for place, rows in enumerate(candidates, position):
        free = [row for row in rows if row not in chosen] or list(rows)
        takes_first = derive_seed(seed, "revisit", place) < config.revisit * _RANGE
        fits = [] if takes_first else [row for row in free if not is_passed_over(rates.get(ids[row]), config)]
        chosen.append((fits or free)[0])
    return chosen


def is_passed_over(known: Sequence[float] | None, config: CurriculumConfig) -> bool:
    """Return whether a row has enough samples and a rate outside the range of the curriculum.

    >>> is_passed_over((8.0, 8), CurriculumConfig()), is_passed_over((7.0, 8), CurriculumConfig())
    (True, False)
    """
    if known is None or known[1] < config.min_samples:
        return False
    return not config.low < known[0] / known[1] < config.high


def note_scores(rates: dict[str, list[float]], scored: Sequence[tuple[str, Sequence[float | None]]]) -> None:
    """Add the scores of a step by row id; failures (None) do not count."""
    for row, scores in scored:
        known = [min(max(score, 0.0), 1.0) for score in scores if score is not None]
        if known:
            total, count = rates.get(row, (0.0, 0))
            rates[row] = [total + sum(known), count + len(known)]
