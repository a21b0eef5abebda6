"""Episodes with several token sequences: shared tokens are trained once, all branches weigh as one sequence."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from slurm_rl.algorithms.credit import build_train_sequences, completion_kl
from slurm_rl.algorithms.filters import keep_sequences, split_minibatches
from slurm_rl.algorithms.losses import CorrectionInputs, geometric_mask
from slurm_rl.algorithms.packing import build_packed_batch
from slurm_rl.algorithms.policy_loss import build_policy_loss
from slurm_rl.algorithms.train_sequences import build_plain_sequences, find_parts, join_parts
from slurm_rl.config.algorithm import AlgorithmConfig, KLConfig
from slurm_rl.data.groups import Branch, Details, Group, Trajectory, Turn
from tests.unit.rl.batch_kit import make_group, make_result

# Prompt 1 2, reply 11 12; prompt 3, reply 13; and a second branch after 11 12: prompt 4 5, reply 14 15.
SPLIT = Trajectory(
    [11, 12, 3, 13, 14, 15],
    [-0.1, -0.2, -0.3, -0.4, -0.5],
    "15",
    False,
    0,
    Details(
        [Turn(0, 2, "a"), Turn(3, 4, "b"), Turn(4, 6, "c")], [Branch([1, 2], 0, 4), Branch([1, 2, 11, 12, 4, 5], 4, 6)]
    ),
)
WHOLE = replace(SPLIT, details=Details(SPLIT.turns))


def groups_with(completion: Trajectory) -> list[Group]:
    """Return a group of three completions with this one in the middle, and another group."""
    first = make_group(0, [1.0, 0.0, 1.0])
    return [
        replace(first, completions=[first.completions[0], completion, first.completions[2]]),
        make_group(1, [1.0, 0.0, 1.0]),
    ]


def test_shared_reply_is_trained_once() -> None:
    sequences = build_plain_sequences(groups_with(SPLIT))
    first, second = sequences[1], sequences[2]
    assert first.token_ids.tolist() == [1, 2, 11, 12, 3, 13]
    assert second.token_ids.tolist() == [1, 2, 11, 12, 4, 5, 14, 15]
    trained = [one.token_ids[one.trained].tolist() for one in (first, second)]
    assert trained == [[11, 12, 13], [14, 15]]
    # Every sampled token appears once.
    assert [*trained[0], *trained[1]] == [SPLIT.token_ids[place] for place in SPLIT.sampled_places()]
    assert all(one.trained is not None and one.trained_from == one.trained[0] for one in (first, second))


def test_token_values_follow_their_tokens() -> None:
    groups = groups_with(SPLIT)
    kl = AlgorithmConfig(kl=KLConfig(coef=0.1))
    ref = [
        np.full(one.num_trained, -float(place), dtype=np.float32)
        for place, one in enumerate(build_plain_sequences(groups))
    ]
    sequences = build_train_sequences(groups, kl, ref)
    assert len(sequences) == 7
    assert [np.float32(one.old_logprobs).tolist() for one in sequences[1:3]] == [
        np.float32([-0.1, -0.2, -0.3]).tolist(),
        np.float32([-0.4, -0.5]).tolist(),
    ]
    assert all(np.array_equal(one.ref_logprobs, ref[place]) for place, one in enumerate(sequences))
    assert all(np.float32(one.advantages).shape == (one.num_trained,) for one in sequences)
    assert sequences[1].advantages is not None and sequences[2].advantages is not None
    assert sequences[1].advantages[0] == sequences[2].advantages[0] < 0
    whole = completion_kl(groups, ref, kl)
    assert len(whole) == 6  # one per completion
    assert [len(array) for array in join_parts(find_parts(groups), ref)] == [2, 5, 2, 2, 2, 2]


@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean-token-mean", "sequence-mean"])
@pytest.mark.parametrize("num_minibatches", [1, 2])
def test_split_episode_has_weight_of_unsplit(aggregation: str, num_minibatches: int) -> None:
    config = AlgorithmConfig.model_validate(
        {"aggregation": aggregation, "aggregation_length": 8 if aggregation == "sequence-mean" else None}
    )
    found = []
    for groups in (groups_with(SPLIT), groups_with(WHOLE)):
        parts = split_minibatches(build_train_sequences(groups, config, None), groups, config, num_minibatches, seed=3)
        found.append([sorted(one.weight for one in part for _ in range(one.num_trained)) for part in parts])
    assert found[0] == found[1]
    if num_minibatches == 1:
        sums = [sum(one.weight * one.num_trained for one in part) for part in parts]
        assert aggregation == "sequence-mean" or sums == pytest.approx([1.0])


@pytest.mark.parametrize("loss", ["gspo", "gspo_token"])
@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean-token-mean", "sequence-mean"])
def test_gspo_gradient_of_branches_equals_one_sequence(loss: str, aggregation: str) -> None:
    config = AlgorithmConfig.model_validate({"loss": loss, "aggregation": aggregation})
    found = []
    for completion in (SPLIT, WHOLE):
        groups = groups_with(completion)
        [batch] = split_minibatches(build_train_sequences(groups, config, None), groups, config, 1, seed=0)
        packed = build_packed_batch(batch)
        assert packed.old_logprobs is not None
        logprobs = packed.old_logprobs.clone().requires_grad_()
        value, _ = build_policy_loss(config, None)(packed, logprobs, torch.zeros(len(logprobs)))
        found.append(torch.autograd.grad(value, logprobs)[0])
    torch.testing.assert_close(*found)


def test_sequence_corrections_are_per_branch() -> None:
    """The branches have 4 tokens with ratio 1 and 2 with ratio 3; the mean of all is within bounds."""
    inputs = CorrectionInputs(
        log_ratio=torch.tensor([1.0, 1.0, 1.0, 1.0, 3.0, 3.0]).log(),
        sequence_ids=torch.tensor([0, 0, 0, 0, 1, 1]),
        num_sequences=2,
        low=0.5,
        high=2.0,
    )
    assert geometric_mask(inputs).tolist() == [1.0] * 4 + [0.0] * 2


def test_failed_episode_is_excluded_with_branches() -> None:
    groups = groups_with(SPLIT)
    results = [groups[0].results[0], make_result(None), groups[0].results[2]]
    groups = [replace(groups[0], results=results), groups[1]]
    config = AlgorithmConfig()
    assert keep_sequences(groups, config.filters) == [True, False, False, True, True, True, True]
    [batch] = split_minibatches(build_train_sequences(groups, config, None), groups, config, 1, seed=0)
    assert not any(14 in one.token_ids for one in batch)
