"""DAPO's punishment of length, worked by hand."""

from __future__ import annotations

from slurm_rl.train.math.shaping import punish_overlong


def test_the_punishment_falls_over_the_last_share_of_the_limit() -> None:
    # Limit 20, buffer 8: free up to 12; 14 is 2/8 into it, 20 is its end.
    assert punish_overlong([3, 12, 14, 20], 20, 0.4, 2.0).tolist() == [0.0, 0.0, -0.5, -2.0]


def test_without_a_buffer_nothing_is_punished() -> None:
    assert punish_overlong([1, 20], 20, 0.0, 1.0).tolist() == [0.0, 0.0]
