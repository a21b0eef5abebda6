"""REINFORCE++ and GAE over whole batches, compared with independent formulas."""

import numpy as np
import pytest
import torch

from slurm_rl.algorithms.credit import build_train_sequences, correct_sampler
from slurm_rl.algorithms.filters import split_minibatches
from slurm_rl.algorithms.packing import build_packed_batch
from slurm_rl.algorithms.policy_loss import build_policy_loss
from slurm_rl.algorithms.sequences import FloatArray, TrainSequence
from slurm_rl.config.algorithm import AlgorithmConfig, CorrectionConfig, GAEConfig, KLConfig
from slurm_rl.config.load import load_config
from slurm_rl.config.registry import ADVANTAGES
from tests.unit.rl.batch_kit import make_group

REWARDS = [[1.0, 0.0, 0.5], [0.2, 0.9, -0.3]]
LENGTHS = [[3, 5, 2], [1, 4, 6]]
GROUPS = [make_group(index, *pair) for index, pair in enumerate(zip(REWARDS, LENGTHS, strict=True))]


def advantages_of(config: AlgorithmConfig, ref: list[FloatArray] | None = None) -> list[FloatArray]:
    found = [sequence.advantages for sequence in build_train_sequences(GROUPS, config, ref)]
    return [one for one in found if one is not None]


def draw_logprobs() -> list[FloatArray]:
    draw = np.random.default_rng(0)
    return [draw.normal(-1.0, 0.5, size).astype(np.float32) for sizes in LENGTHS for size in sizes]


@pytest.mark.parametrize("name", ["reinforce_pp", "reinforce_pp_baseline"])
@pytest.mark.parametrize("has_kl", [False, True])
def test_reinforce_pp_matches_equations_of_paper(name: str, has_kl: bool) -> None:
    """arXiv 2501.03262 v9, eq. 8: reward - beta * sum of KL_i over i >= t; eq. 10: whitened over all tokens."""
    kl = KLConfig(coef=0.1, estimator="k1", apply_to="reward")
    config = AlgorithmConfig(advantage=name, group_size=3, kl=kl if has_kl else KLConfig())
    reference = draw_logprobs()
    rewards = np.array(REWARDS)
    if name == "reinforce_pp_baseline":
        rewards = rewards - rewards.mean(1, keepdims=True)
    expected = []
    for reward, ref in zip(rewards.flatten(), reference, strict=True):
        kl_of_token = -0.5 - ref.astype(np.float64)
        later = [kl_of_token[t:].sum() for t in range(len(ref))]
        expected.append(reward - (0.1 * np.array(later) if has_kl else np.zeros(len(ref))))
    tokens = np.concatenate(expected)
    found = advantages_of(config, reference if has_kl else None)
    for one, raw in zip(found, expected, strict=True):
        assert one == pytest.approx((raw - tokens.mean()) / tokens.std(), abs=1e-5)


def test_presets_match_papers() -> None:
    plain, baseline = (
        load_config(["+exp=demo", f"+algorithm={name}"]).algorithm for name in ("reinforce_pp", "reinforce_pp_baseline")
    )
    assert (plain.advantage, plain.kl.estimator, plain.kl.apply_to) == ("reinforce_pp", "k1", "reward")
    assert (baseline.advantage, baseline.kl.estimator, baseline.kl.apply_to) == ("reinforce_pp_baseline", "k2", "loss")


@pytest.mark.parametrize("name", list(ADVANTAGES))
@pytest.mark.parametrize("has_kl", [False, True])
def test_failed_reward_does_not_affect_others(name: str, has_kl: bool) -> None:
    """Advantages, returns and weights of the others stay; a failed completion must not get the best advantage."""
    kl = KLConfig(coef=0.1, estimator="k1", apply_to="reward") if has_kl else KLConfig()
    config = AlgorithmConfig(advantage=name, group_size=4, kl=kl, gae=GAEConfig(whiten=True))
    rewards, lengths = [-5.0, -5.5, -4.5, -5.2], [3, 2, 4, 3]
    without = [make_group(0, rewards, lengths)]
    with_failed = [make_group(0, [*rewards[:2], None, *rewards[2:]], [*lengths[:2], 7, *lengths[2:]])]
    found = []
    for groups in (without, with_failed):
        sizes = [len(completion.token_ids) for completion in groups[0].completions]
        zeros: list[FloatArray] = [np.full(size, 0.25, dtype=np.float32) for size in sizes]
        values = zeros if config.needs_values else None
        ref = [np.full(size, -1.5, dtype=np.float32) for size in sizes] if has_kl else None
        sequences = build_train_sequences(groups, config, ref, values)
        [batch] = split_minibatches(sequences, groups, config, 1, seed=0)
        found.append(
            [(s.weight, s.advantages.tolist(), None if s.returns is None else s.returns.tolist())
             for s in batch if s.advantages is not None]
        )  # fmt: skip
    assert len(found[0]) == 4
    assert found[0] == found[1]


# Two completions of two tokens; policy/sampler ratio is 2 at the last token and a quarter at the third.
SAMPLED = [[-1.0, -2.0], [-3.0, -1.5]]
FACTORS = [1.0, 1.0, 0.25, 2.0]
POLICY = torch.tensor([value for row in SAMPLED for value in row]) + torch.tensor(FACTORS).log()


def build_sequences() -> list[TrainSequence]:
    return [
        TrainSequence(
            token_ids=np.arange(2, 6),
            trained_from=2,
            weight=0.25,
            advantages=np.float32([advantage, advantage]),
            old_logprobs=np.float32(sampled),
        )
        for sampled, advantage in zip(SAMPLED, (1.0, -1.0), strict=True)
    ]


def compute(
    sequences: list[TrainSequence], config: AlgorithmConfig, kind: str | None
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the gradient by the policy's logprobs, and the sums of the metrics."""
    logprobs = POLICY.clone().requires_grad_()
    loss, sums = build_policy_loss(config, kind)(  # type: ignore[arg-type]
        build_packed_batch(sequences), logprobs, torch.zeros(4)
    )
    loss.backward()
    assert logprobs.grad is not None
    return logprobs.grad, sums


def test_uncorrected_ratio_uses_sampler_logprobs() -> None:
    gradient, sums = compute(build_sequences(), AlgorithmConfig(clip_ratio_low=0.9, clip_ratio_high=4.0), None)
    # -ratio * advantage * weight
    assert gradient.tolist() == pytest.approx([-0.25, -0.25, 0.25 * 0.25, 0.25 * 2.0])
    assert "correction/weight_mean" not in sums
    assert sums["mismatch/max"] == pytest.approx(np.log(4))


@pytest.mark.parametrize("own_pass", [True, False])
def test_correction_scales_tokens_without_clipping_on_policy(own_pass: bool) -> None:
    """The policy's logprobs come from a separate pass or from the training pass."""
    proximal = None if own_pass else [POLICY[:2].numpy(), POLICY[2:].numpy()]
    config = AlgorithmConfig(clip_ratio_low=1e-6, clip_ratio_high=1e-6, correction=CorrectionConfig(high=1.5))
    gradient, sums = compute(correct_sampler(build_sequences(), proximal), config, "token_tis")
    assert gradient.tolist() == pytest.approx([-0.25, -0.25, 0.25 * 0.25, 0.25 * 1.5])
    assert sums["policy/clip_fraction"] == 0
    assert sums["correction/weight_mean"] == pytest.approx(1 + 1 + 0.25 + 1.5)
    assert sums["correction/dropped"] == 0
    assert sums["mismatch/mean"] == pytest.approx(np.log(4) + np.log(2))


def test_masked_sequence_has_no_gradient_and_is_counted() -> None:
    config = AlgorithmConfig(loss="gspo", correction=CorrectionConfig(low=0.9, high=1.1))
    gradient, sums = compute(correct_sampler(build_sequences(), None), config, "geometric_mask")
    # The second sequence's geometric mean is sqrt(0.25 * 2) = 0.71.
    assert gradient.tolist() == pytest.approx([-0.25, -0.25, 0.0, 0.0])
    assert sums["correction/dropped"] == 2
