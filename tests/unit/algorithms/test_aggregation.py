from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_rl.algorithms.losses import ClipRange, LossInputs, aggregation_weights
from slurm_rl.algorithms.packing import build_packed_batch
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.algorithm import AggregationName
from slurm_rl.config.registry import POLICY_LOSSES


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", [1 / 4, 0]),
        ("sequence-mean-token-mean", [1 / 8, 0]),  # the empty sequence still counts
        ("sequence-mean", [1 / 2, 0]),
    ],
)
def test_empty_completion_has_no_weight(mode: AggregationName, expected: list[float]) -> None:
    assert aggregation_weights(mode, [4, 0]).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("mode", get_args(AggregationName))
def test_only_empty_completions_give_zero(mode: AggregationName) -> None:
    with np.errstate(all="raise"):
        assert aggregation_weights(mode, [0, 0]).tolist() == [0, 0]
        assert aggregation_weights(mode, []).tolist() == []


def make_sequences(lengths: list[tuple[int, int]], mode: AggregationName, seed: int) -> list[TrainSequence]:
    """Random sequences of (prompt, completion) lengths over a vocabulary of 11."""
    random = np.random.default_rng(seed)
    weights = aggregation_weights(mode, [completion for _, completion in lengths])
    return [
        TrainSequence(
            token_ids=random.integers(0, 11, prompt + completion),
            trained_from=prompt,
            weight=weight,
            advantages=np.full(completion, random.normal(), np.float32),
            old_logprobs=random.normal(-2, 0.5, completion).astype(np.float32),
        )
        for (prompt, completion), weight in zip(lengths, weights, strict=True)
    ]


def compute_total(name: str, sequences: list[TrainSequence], table: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum over one packed row; the "model" looks up each token's logprob in a table."""
    batch = build_packed_batch(sequences)
    assert batch.old_logprobs is not None
    inputs = LossInputs(
        logprobs=table[batch.token_ids[batch.trained_positions]],
        old_logprobs=batch.old_logprobs,
        advantages=batch.advantages,
        sequence_ids=batch.sequence_ids,
        num_sequences=batch.num_sequences,
    )
    return (POLICY_LOSSES[name].load()(inputs, ClipRange(low=0.2, high=0.28, dual=3.0)).loss * batch.weights).sum()


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(list(POLICY_LOSSES)),
    mode=st.sampled_from(get_args(AggregationName)),
    lengths=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), min_size=1, max_size=8),
    assignment=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    seed=st.integers(0, 1000),
)
def test_total_and_gradient_are_independent_of_micro_batches(
    name: str, mode: AggregationName, lengths: list[tuple[int, int]], assignment: list[int], seed: int
) -> None:
    sequences = make_sequences(lengths, mode, seed)
    parts = [[s for s, a in zip(sequences, assignment, strict=False) if a == part] for part in range(4)]

    whole_table = torch.linspace(-3, -1, 11).requires_grad_()
    whole = compute_total(name, sequences, whole_table)
    whole.backward()
    split_table = whole_table.detach().clone().requires_grad_()
    totals = [compute_total(name, part, split_table) for part in parts if part]
    torch.stack(totals).sum().backward()

    torch.testing.assert_close(torch.stack(totals).sum(), whole, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(split_table.grad, whole_table.grad, rtol=1e-5, atol=1e-6)
