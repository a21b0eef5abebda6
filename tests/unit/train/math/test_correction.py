"""Importance correction, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slurm_rl.config.algorithm import CorrectionConfig, CorrectionName
from slurm_rl.train.math.correction import correction_weights, mismatch_metrics

# Ratios policy / sampler: 4, 1, 1/4; their geometric mean is 1.
SAMPLER = np.log(np.array([0.1, 0.5, 0.4], np.float32))
POLICY = np.log(np.array([0.4, 0.5, 0.1], np.float32))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("none", [1.0, 1.0, 1.0]),
        ("token_tis", [2.0, 1.0, 0.25]),
        ("icepop", [0.0, 1.0, 0.0]),
        ("sequence_mask", [1.0, 1.0, 1.0]),
    ],
)
def test_each_rule_by_hand(kind: CorrectionName, expected: list[float]) -> None:
    config = CorrectionConfig(kind=kind, low=0.5, high=2.0)
    assert correction_weights(POLICY, SAMPLER, config).tolist() == pytest.approx(expected, abs=1e-6)


def test_a_completion_far_from_the_sampler_is_masked_whole() -> None:
    config = CorrectionConfig(kind="sequence_mask", low=0.5, high=2.0)
    # Two tokens of ratio 4: geometric mean 4.
    assert correction_weights(POLICY[[0, 0]], SAMPLER[[0, 0]], config).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["token_tis", "icepop", "sequence_mask"])
def test_an_empty_completion_and_an_infinite_ratio_are_no_nan(kind: CorrectionName) -> None:
    config = CorrectionConfig(kind=kind)
    assert correction_weights(POLICY[:0], SAMPLER[:0], config).shape == (0,)
    far = correction_weights(np.zeros(1, np.float32), np.full(1, -np.inf, np.float32), config)
    assert np.isfinite(far).all()


def test_mismatch_by_hand() -> None:
    found = mismatch_metrics([POLICY[:1], POLICY[1:]], [SAMPLER[:1], SAMPLER[1:]])
    # k3: (4 - 1 - log 4) + 0 + (1/4 - 1 + log 4) = 2.25 over 3 tokens; |d| is log 4, 0, log 4.
    assert found["mismatch/kl"] == pytest.approx(0.75, abs=1e-6)
    assert found["mismatch/mean"] == pytest.approx(2 * math.log(4) / 3, abs=1e-6)
    assert found["mismatch/max"] == pytest.approx(math.log(4), abs=1e-6)
