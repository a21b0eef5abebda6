"""Importance corrections, with ratios worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_rl.train.math.correction import CORRECTIONS, icepop, sequence_mask, token_tis

LOG_RATIO = np.log(np.array([0.25, 0.5, 1.0, 2.0, 8.0], dtype=np.float32))


def test_token_tis_cuts_large_ratios_alone() -> None:
    assert token_tis(LOG_RATIO, 0.5, 4.0) == pytest.approx([0.25, 0.5, 1.0, 2.0, 4.0])


def test_icepop_drops_what_is_outside() -> None:
    assert icepop(LOG_RATIO, 0.4, 4.0) == pytest.approx([0.0, 0.5, 1.0, 2.0, 0.0])


def test_sequence_mask_looks_at_the_geometric_mean() -> None:
    # The product of the five is 2: its fifth root is 1.149.
    assert sequence_mask(LOG_RATIO, 0.9, 1.2).tolist() == [1.0] * 5
    assert sequence_mask(LOG_RATIO, 0.9, 1.1).tolist() == [0.0] * 5


@pytest.mark.parametrize("name", CORRECTIONS)
def test_the_same_policy_is_not_corrected_and_nothing_overflows(name: str) -> None:
    correction = CORRECTIONS[name]  # type: ignore[index]
    assert correction(np.zeros(3, dtype=np.float32), 0.5, 2.0).tolist() == [1.0] * 3
    far = correction(np.array([-1e4, 1e4], dtype=np.float32), 0.5, 2.0)
    assert far.dtype == np.float32 and np.isfinite(far).all() and (far >= 0).all()
    assert len(correction(np.zeros(0, dtype=np.float32), 0.5, 2.0)) == 0
