import itertools
import random
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.algorithms.estimates import average_at_k, estimate_mean, estimate_pass

scores = st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), min_size=1, max_size=5), min_size=1, max_size=5)


@given(scores, st.integers(1, 5))
def test_estimates_equal_brute_force(rows: list[list[float | None]], k: int) -> None:
    known = [[score for score in row if score is not None] for row in rows]
    shares = [fmean(row) for row in known if row]
    found = average_at_k(rows)
    assert (found is None) == (not shares)
    if found is not None:
        assert found.value == pytest.approx(fmean(shares))
    # Whether any of k chosen samples is correct, for each choice and prompt.
    chances = [
        fmean(any(score >= 1 for score in choice) for choice in itertools.combinations(row, k))
        for row in known
        if len(row) >= k
    ]
    passed = estimate_pass(rows, k)
    assert (passed is None) == (not chances)
    if passed is not None:
        assert passed.value == pytest.approx(fmean(chances))


def test_interval_is_over_prompts_not_samples() -> None:
    rows = [[1.0] * 4, [0.0] * 4, [1.0] * 4, [0.0] * 4]
    found = average_at_k(rows)
    assert found is not None and found.error == pytest.approx(1.96 * stdev([1, 0, 1, 0]) / 2, rel=1e-4)
    one = estimate_mean([0.25])
    assert one is not None and (one.value, one.error) == (0.25, 0.0)


def test_interval_has_stated_coverage() -> None:
    rng, held = random.Random(0), 0
    for _ in range(1000):
        chances = [rng.random() for _ in range(100)]
        found = average_at_k([[float(rng.random() < chance) for _ in range(4)] for chance in chances])
        assert found is not None
        held += abs(found.value - 0.5) <= found.error
    assert 0.92 < held / 1000 < 0.98
