import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from slurm_rl.algorithms.credit import build_train_sequences, correct_sampler
from slurm_rl.algorithms.filters import drop_without_gradient, has_signal, split_minibatches
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.algorithms.shaping import overlong_penalty, shape_overlong
from slurm_rl.config.algorithm import AlgorithmConfig, CorrectionConfig, FilterConfig, KLConfig, OverlongConfig
from slurm_rl.config.load import load_config
from slurm_rl.data.groups import Group
from slurm_rl.trainers.grpo.batch_queue import collect_groups
from slurm_rl.trainers.grpo.step_metrics import kept_metrics
from tests.unit.rl.batch_kit import make_group, make_result


def build_batch(groups: list[Group], config: AlgorithmConfig) -> list[TrainSequence]:
    """Return the kept sequences with their weights in one optimizer step."""
    [batch] = split_minibatches(build_train_sequences(groups, config, None), groups, config, 1, seed=0)
    return batch


def test_sequence_holds_prompt_completion_and_advantage() -> None:
    config = AlgorithmConfig(group_size=2, advantage="dr_grpo")
    right, wrong = build_batch([make_group(5, [1.0, 0.0], [2, 3])], config)
    assert right.token_ids.tolist() == [5, 9, 9] and right.trained_from == 1
    # Mean reward 0.5: the correct completion is 0.5 above it, the other one 0.5 below.
    assert np.array_equal(right.advantages, [0.5] * 2) and np.array_equal(wrong.advantages, [-0.5] * 3)
    # token-mean over 2 + 3 tokens.
    assert right.weight == wrong.weight == pytest.approx(0.2)


def test_kl_in_reward_is_subtracted_before_advantage() -> None:
    kl = KLConfig(coef=0.1, estimator="k1", apply_to="reward")
    config = AlgorithmConfig(group_size=2, advantage="dr_grpo", kl=kl)
    # k1 = old - ref = -0.5 - (-1.5) = 1 per token: 2 tokens cost 0.2, 1 token costs 0.1.
    ref = [np.array([-1.5, -1.5], np.float32), np.array([-1.5], np.float32)]
    first, second = build_train_sequences([make_group(0, [1.0, 1.0], [2, 1])], config, ref)
    assert (first.advantages, second.advantages) == (pytest.approx([-0.05] * 2), pytest.approx([0.05]))


def test_groups_of_equal_rewards_need_kl_term() -> None:
    config = AlgorithmConfig(group_size=2)
    groups = [make_group(0, [1.0, 1.0]), make_group(1, [1.0, 0.0])]
    sequences = build_batch(groups, config)
    kept = drop_without_gradient(sequences, config)
    assert [s.token_ids[0] for s in kept] == [1, 1]
    # Dropped sequences still count in the mean: 8 tokens, not 4.
    assert kept[0].weight == pytest.approx(1 / 8)
    with_kl = AlgorithmConfig(group_size=2, kl=KLConfig(coef=0.1))
    assert len(drop_without_gradient(sequences, with_kl)) == 4


@pytest.mark.parametrize(("length", "penalty"), [(1, 0.0), (80, 0.0), (85, -0.25), (90, -0.5), (100, -1.0)])
def test_overlong_penalty_applies_in_last_fifth(length: int, penalty: float) -> None:
    """DAPO's equation 13 with L_max = 100 and L_cache = 20."""
    assert overlong_penalty(length, 100, OverlongConfig(buffer_share=0.2)) == pytest.approx(penalty)
    assert overlong_penalty(length, 100, OverlongConfig(buffer_share=0.2, penalty=0.5)) == pytest.approx(penalty / 2)
    assert overlong_penalty(length, 100, OverlongConfig()) == 0.0


def test_shaping_lowers_scores_and_keeps_failures() -> None:
    groups = [make_group(0, [1.0, None], [10, 10])]
    [shaped] = shape_overlong(groups, OverlongConfig(buffer_share=0.5, penalty=0.25), {"": 10})
    assert [one.value for one in shaped.results] == [0.75, None]
    assert shaped.results[0].parts["overlong"] == -0.25
    assert shaped.results[0].unshaped == 1.0
    assert shape_overlong(groups, OverlongConfig(), {"": 10}) == groups


def test_correction_uses_policy_ratio_and_keeps_sampler_logprobs() -> None:
    config = AlgorithmConfig(group_size=2, advantage="dr_grpo")
    plain = build_train_sequences([make_group(0, [1.0, 0.0])], config, None)
    assert all(s.old_logprobs is not None and s.sampler_logprobs is None for s in plain)
    proximal = [np.float32([-0.4, -0.3]), np.float32([-0.2, -0.1])]
    for olds in (proximal, None):
        corrected = correct_sampler(plain, olds)
        assert [s.old_logprobs for s in corrected] == (olds or [None, None])
        for before, after in zip(plain, corrected, strict=True):
            assert after.sampler_logprobs is before.old_logprobs
            assert after.advantages is before.advantages


def test_bounds_of_correction_hold_1() -> None:
    with pytest.raises(ValueError, match="less than 1"):
        CorrectionConfig(kind="icepop", low=1.5)


def test_filtered_completions_leave_mean_but_not_baseline() -> None:
    filters = FilterConfig(drop_zero_variance_groups=True, min_tokens=2, max_tokens=3)
    config = AlgorithmConfig(group_size=2, advantage="dr_grpo", filters=filters)
    groups = [make_group(0, [1.0, 1.0]), make_group(1, [1.0, 0.0], [2, 1])]
    [kept] = build_batch(groups, config)
    # One sequence is left: the first completion of the second group, 2 tokens; its baseline is still 0.5.
    assert kept.weight == 0.5 and np.array_equal(kept.advantages, [0.5, 0.5])
    assert kept_metrics(groups, filters) == {"tokens/trained": 2.0, "entropy/sampled": 0.5}


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
