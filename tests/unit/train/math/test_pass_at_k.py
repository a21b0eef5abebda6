"""pass@k against what counting every choice gives."""

from __future__ import annotations

import itertools

import pytest

from slurm_rl.train.math.pass_at_k import mean_pass_at_k, pass_at_k


@pytest.mark.parametrize(("num_samples", "num_right", "k"), [(5, 2, 3), (5, 0, 2), (5, 5, 1), (6, 1, 6), (7, 3, 1)])
def test_it_is_the_share_of_choices_with_a_right_one(num_samples: int, num_right: int, k: int) -> None:
    choices = list(itertools.combinations([True] * num_right + [False] * (num_samples - num_right), k))
    expected = sum(any(choice) for choice in choices) / len(choices)
    assert pass_at_k(num_samples, num_right, k) == pytest.approx(expected)


def test_the_mean_is_over_prompts_at_powers_of_two_and_at_all() -> None:
    # Of 4 samples 1 and 4 are right: pass@2 is 1/2 and 1, pass@4 is 1 and 1.
    assert mean_pass_at_k(4, [1, 4]) == {"pass@2": 0.75, "pass@4": 1.0}
    assert list(mean_pass_at_k(6, [0])) == ["pass@2", "pass@4", "pass@6"]
    assert mean_pass_at_k(1, [1]) == {}
