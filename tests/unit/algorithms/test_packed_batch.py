from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from slurm_rl.algorithms.packing import build_packed_batch, split_by_sequence
from slurm_rl.algorithms.sequences import TrainSequence


def floats(*values: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array(values, np.float32)


# The worked example of algorithms/sequences.py, a prompt with an empty completion, and one with three tokens.
ADDITION = TrainSequence(
    token_ids=np.array([5, 12, 6, 13, 9, 1]),
    trained_from=4,
    weight=0.5,
    advantages=floats(1, 1),
    old_logprobs=floats(-0.1, -0.2),
)
EMPTY = TrainSequence(
    token_ids=np.array([7, 7]), trained_from=2, weight=0.0, advantages=floats(), old_logprobs=floats()
)
SHORT = TrainSequence(
    token_ids=np.array([5, 8, 8, 1]),
    trained_from=1,
    weight=0.25,
    advantages=floats(-1, -2, -3),
    old_logprobs=floats(-1, -2, -3),
)


def test_row_by_hand() -> None:
    batch = build_packed_batch([ADDITION, EMPTY, SHORT])
    #                                    0   1  2   3  4  5  6  7  8  9 10 11
    assert batch.token_ids.tolist() == [5, 12, 6, 13, 9, 1, 7, 7, 5, 8, 8, 1]
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 0, 1, 2, 3]
    assert batch.cu_seqlens.tolist() == [0, 6, 8, 12]
    assert batch.trained_positions.tolist() == [4, 5, 9, 10, 11]
    assert batch.sequence_ids.tolist() == [0, 0, 2, 2, 2]
    assert batch.weights.tolist() == [0.5, 0.5, 0.25, 0.25, 0.25]
    assert batch.advantages.tolist() == [1, 1, -1, -2, -3]
    assert batch.old_logprobs is not None
    torch.testing.assert_close(batch.old_logprobs, torch.tensor([-0.1, -0.2, -1, -2, -3]))
    assert batch.ref_logprobs is None
    assert batch.num_sequences == 3


def test_supervised_sequences_lack_advantages_and_logprobs() -> None:
    batch = build_packed_batch([TrainSequence(token_ids=np.array([1, 2, 3]), trained_from=1, weight=1.0)])
    assert batch.advantages.tolist() == [0, 0]
    assert batch.old_logprobs is None


def test_trained_token_has_temperature_of_its_sequence() -> None:
    assert build_packed_batch([ADDITION, SHORT]).temperatures is None
    # An untrained sequence, such as a blank image, needs no temperature.
    batch = build_packed_batch([replace(ADDITION, temperature=0.5), EMPTY, replace(SHORT, temperature=1.0)])
    assert batch.temperatures is not None and batch.temperatures.dtype == torch.float32
    assert batch.temperatures.tolist() == [0.5, 0.5, 1, 1, 1]
    with pytest.raises(AssertionError, match="must have a temperature, or none"):
        build_packed_batch([ADDITION, replace(SHORT, temperature=1.0)])


def test_row_without_trained_tokens() -> None:
    batch = build_packed_batch([EMPTY])
    assert batch.token_ids.tolist() == [7, 7]
    assert len(batch.trained_positions) == len(batch.weights) == len(batch.advantages) == 0


def test_mismatched_values_are_refused() -> None:
    # Without the check, all later values would shift to wrong tokens.
    short_by_one = TrainSequence(token_ids=np.array([1, 2, 3]), trained_from=1, old_logprobs=floats(-1))
    with pytest.raises(AssertionError):
        build_packed_batch([short_by_one])
    without = TrainSequence(token_ids=np.array([1, 2, 3]), trained_from=1)
    with pytest.raises(AssertionError):
        build_packed_batch([ADDITION, without])
    with pytest.raises(AssertionError):
        build_packed_batch([])


def test_untrained_sequence_may_lack_values() -> None:
    """A blank image after text-only rows keeps the vision tower's collectives in step."""
    blank = TrainSequence(token_ids=np.array([3, 3, 0]), trained_from=3)
    batch = build_packed_batch([ADDITION, SHORT, blank])
    assert batch.advantages.tolist() == [1, 1, -1, -2, -3]
    assert batch.num_sequences == 3


def test_split_by_sequence_undoes_packing() -> None:
    sequences = [EMPTY, SHORT, ADDITION, EMPTY]
    batch = build_packed_batch(sequences)
    assert batch.old_logprobs is not None
    parts = split_by_sequence(batch.old_logprobs.requires_grad_(), batch.sequence_ids, batch.num_sequences)
    assert [part.tolist() for part in parts] == [
        [] if s.old_logprobs is None else s.old_logprobs.tolist() for s in sequences
    ]
    assert all(part.dtype == np.float32 for part in parts)
