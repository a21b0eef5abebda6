import numpy as np
import pytest

from slurm_rl.algorithms.credit import build_train_sequences, correct_sampler, group_rewards
from slurm_rl.algorithms.filters import drop_without_gradient, split_minibatches
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.algorithms.shaping import overlong_penalty, shape_overlong
from slurm_rl.config.algorithm import AlgorithmConfig, CorrectionConfig, FilterConfig, KLConfig, OverlongConfig
from slurm_rl.data.groups import Group, Trajectory
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.trainers.grpo.step_metrics import kept_metrics


def prompt(answer: str = "7") -> EncodedPrompt:
    return EncodedPrompt(index=0, token_ids=[5, 12, 6, 13], text="3+4=", answer=answer)


def completion(tokens: list[int]) -> Trajectory:
    return Trajectory(tokens, [-0.5] * len(tokens), "7", False, 0)


def result(value: float | None) -> RewardResult:
    item = RewardItem(completion="7", answer="7")
    return RewardResult(item=item, value=value, failure=None if value is not None else "crash")


def group(values: list[float | None], tokens: list[list[int]]) -> Group:
    return Group(prompt(), [completion(ids) for ids in tokens], [result(value) for value in values])


def build_batch(groups: list[Group], config: AlgorithmConfig) -> list[TrainSequence]:
    """Return the kept sequences with their weights in one optimizer step."""
    [batch] = split_minibatches(build_train_sequences(groups, config, None), groups, config, 1, seed=0)
    return batch


def test_sequence_holds_prompt_completion_and_advantage() -> None:
    config = AlgorithmConfig(group_size=2, advantage="dr_grpo")
    right, wrong = build_batch([group([1.0, 0.0], [[9, 1], [8, 8, 1]])], config)
    assert right.token_ids.tolist() == [5, 12, 6, 13, 9, 1]
    assert right.trained_from == 4
    # Mean reward 0.5: the correct completion is 0.5 above it, the other one 0.5 below.
    assert right.advantages is not None
    assert right.advantages.tolist() == [0.5, 0.5]
    assert wrong.advantages is not None
    assert wrong.advantages.tolist() == [-0.5] * 3
    # token-mean over 2 + 3 tokens.
    assert right.weight == pytest.approx(0.2)
    assert wrong.weight == pytest.approx(0.2)


def test_failed_reward_is_unknown() -> None:
    rewards, known = group_rewards([group([1.0, 0.0, None], [[1]] * 3), group([None] * 3, [[1]] * 3)])
    assert rewards.tolist() == [[1.0, 0.0, 0.0], [0.0] * 3]
    assert known.tolist() == [[True, True, False], [False] * 3]


def test_kl_in_reward_is_subtracted_before_advantage() -> None:
    kl = KLConfig(coef=0.1, estimator="k1", apply_to="reward")
    config = AlgorithmConfig(group_size=2, advantage="dr_grpo", kl=kl)
    # k1 = old - ref = -0.5 - (-1.5) = 1 per token: 2 tokens cost 0.2, 1 token costs 0.1.
    ref = [np.array([-1.5, -1.5], np.float32), np.array([-1.5], np.float32)]
    first, second = build_train_sequences([group([1.0, 1.0], [[9, 1], [1]])], config, ref)
    assert first.advantages is not None
    assert second.advantages is not None
    assert first.advantages[0] == pytest.approx(-0.05)
    assert second.advantages[0] == pytest.approx(0.05)


def test_groups_of_equal_rewards_need_kl_term() -> None:
    config = AlgorithmConfig(group_size=2)
    groups = [group([1.0, 1.0], [[9, 1], [9, 1]]), group([1.0, 0.0], [[9, 1], [8, 1]])]
    sequences = build_batch(groups, config)
    kept = drop_without_gradient(sequences, config)
    assert [s.token_ids.tolist()[-2] for s in kept] == [9, 8]
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
    groups = [group([1.0, None], [[9] * 10, [9] * 10])]
    [shaped] = shape_overlong(groups, OverlongConfig(buffer_share=0.5, penalty=0.25), {"": 10})
    assert [one.value for one in shaped.results] == [0.75, None]
    assert shaped.results[0].parts["overlong"] == -0.25
    assert shaped.results[0].unshaped == 1.0
    assert shape_overlong(groups, OverlongConfig(), {"": 10}) == groups


def test_correction_uses_policy_ratio_and_keeps_sampler_logprobs() -> None:
    config = AlgorithmConfig(group_size=2, advantage="dr_grpo")
    plain = build_train_sequences([group([1.0, 0.0], [[9, 1], [8, 8]])], config, None)
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
    groups = [group([1.0, 1.0], [[9, 1], [9, 1]]), group([1.0, 0.0], [[9, 1], [8]])]
    [kept] = build_batch(groups, config)
    # One sequence is left: the first completion of the second group, 2 tokens; its baseline is still 0.5.
    assert kept.weight == 0.5
    assert kept.advantages is not None
    assert kept.advantages.tolist() == [0.5, 0.5]
    assert kept_metrics(groups, filters) == {"tokens/trained": 2.0, "entropy/sampled": 0.5}
