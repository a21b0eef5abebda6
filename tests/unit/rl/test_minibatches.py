import random
from collections import Counter
from dataclasses import replace

import pytest

from slurm_rl.algorithms.credit import build_train_sequences
from slurm_rl.algorithms.filters import drop_without_gradient, has_signal, keep_mask, split_minibatches
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.algorithms.shaping import shape_overlong
from slurm_rl.config.algorithm import AlgorithmConfig, FilterConfig
from slurm_rl.config.load import load_config
from slurm_rl.data.groups import Group
from slurm_rl.trainers.grpo.batch_queue import collect_groups
from slurm_rl.trainers.grpo.step_metrics import sampling_metrics
from tests.unit.rl.batch_kit import make_group, make_result

DAPO = load_config(["+exp=demo", "+algorithm=dapo"]).algorithm


def make_batch(num_groups: int, num_with_signal: int) -> list[Group]:
    """Return groups of 8 completions with 1 to 9 tokens; groups with signal are spread over the batch."""
    draw = random.Random(0)
    chosen = set(draw.sample(range(num_groups), num_with_signal))
    return [
        make_group(i, [1.0, 0.0] * 4 if i in chosen else [0.0] * 8, [draw.randint(1, 9) for _ in range(8)])
        for i in range(num_groups)
    ]


def split(groups: list[Group], config: AlgorithmConfig, count: int, seed: int = 0) -> list[list[TrainSequence]]:
    return split_minibatches(build_train_sequences(groups, config, None), groups, config, count, seed)


def weight_sum(batch: list[TrainSequence]) -> float:
    return sum(sequence.weight * sequence.num_trained for sequence in batch)


def indices(batch: list[TrainSequence]) -> list[int]:
    """Return the group index of each sequence in order."""
    return [int(sequence.token_ids[0]) for sequence in batch]


def test_dapo_step_is_mean_over_groups_with_signal() -> None:
    groups = make_batch(32, 9)
    collected = collect_groups(lambda number: groups if number == 0 else make_batch(32, 0), 32, 4).groups
    parts = split(collected, DAPO, 4)
    assert [weight_sum(part) for part in parts] == pytest.approx([1.0] * 4)
    # Nothing is lost or repeated, and groups stay together.
    with_signal = [group.prompt.index for group in groups if has_signal(group)]
    assert Counter(i for part in parts for i in indices(part)) == dict.fromkeys(with_signal, 8)
    assert sorted(len(set(indices(part))) for part in parts) == [2, 2, 2, 3]
    assert all(drop_without_gradient(part, DAPO) == part for part in parts)


@pytest.mark.parametrize(
    ("aggregation", "expected"), [("token-mean", 1.0), ("sequence-mean-token-mean", 1.0), ("sequence-mean", None)]
)
def test_weights_are_normalized_within_minibatch(aggregation: str, expected: float | None) -> None:
    config = AlgorithmConfig.model_validate({"aggregation": aggregation})
    for part in split(make_batch(12, 12), config, 3):
        # The third aggregation is the mean over completions of their token sums.
        wanted = expected or sum(sequence.num_trained for sequence in part) / len(part)
        assert weight_sum(part) == pytest.approx(wanted)


def test_order_follows_from_seed_and_differs_between_epochs() -> None:
    groups, config = make_batch(32, 32), AlgorithmConfig()
    first, again, other = ([indices(part) for part in split(groups, config, 4, seed)] for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert sorted(i for part in first for i in part) == sorted(i for part in other for i in part)
    # A single minibatch equals the sampled batch.
    [whole] = split(groups, config, 1, seed=1)
    assert indices(whole) == [i for i in range(32) for _ in range(8)]


def test_few_groups_make_few_steps() -> None:
    parts = split(make_batch(32, 2), DAPO, 4)
    assert [weight_sum(part) for part in parts] == pytest.approx([1.0, 1.0])
    assert split(make_batch(32, 0), DAPO, 4) == []


def test_minibatch_without_gradient_is_detected() -> None:
    """Without the filter, groups with equal rewards count in the mean without a gradient."""
    config = AlgorithmConfig()
    [part] = split(make_batch(4, 0), config, 1)
    assert weight_sum(part) == pytest.approx(1.0)
    assert drop_without_gradient(part, config) == []


def test_failed_completion_is_in_no_minibatch() -> None:
    groups = [make_group(0, [1.0, None, 0.0], [2, 9, 2])]
    assert keep_mask(groups, FilterConfig()) == [True, False, True]
    [part] = split(groups, AlgorithmConfig(group_size=3), 1)
    assert [(sequence.num_trained, sequence.weight) for sequence in part] == [(2, 0.25)] * 2


def test_signal_is_verdict_of_judge() -> None:
    """DAPO and verl (filter_groups.metric=acc) filter by accuracy and ignore rewards of format and length."""
    group = make_group(0, [0.0] * 2)
    wrong = [make_result(0.0, {"math": 0.0, "format": 0.0}), make_result(0.5, {"math": 0.0, "format": 1.0})]
    right = [*wrong, make_result(1.0, {"math": 1.0, "format": 0.0})]
    assert not has_signal(replace(group, results=wrong))
    assert has_signal(replace(group, results=right))
    # Scores that an OpenRLHF service returns besides its reward.
    told = [make_result(1.0, {"acc_rewards": 1.0}), make_result(2.0, {"acc_rewards": 1.0})]
    assert not has_signal(replace(group, results=told))


def test_signal_without_judge_is_reward_before_overlong() -> None:
    config = DAPO.overlong
    alike, unlike = make_group(0, [0.1, 0.1, 0.1], [2, 9, 10]), make_group(1, [0.1, 0.3, 0.1], [2, 9, 10])
    shaped = shape_overlong([alike, unlike], config, max_tokens={"": 10})
    assert len({result.value for result in shaped[0].results}) == 3
    assert [has_signal(group) for group in shaped] == [False, True]


def test_failed_reward_is_no_signal() -> None:
    assert not has_signal(make_group(0, [1.0, None, 1.0]))
    assert sampling_metrics([make_group(0, [1.0, None, 1.0])])["reward/groups_with_signal"] == 0.0
