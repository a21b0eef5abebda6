"""From a packed batch to the policy loss: the denominator of the ratio, and the correction of sampler logprobs."""

import numpy as np
import pytest
import torch

from slurm_rl.algorithms.credit import correct_sampler
from slurm_rl.algorithms.packing import build_packed_batch
from slurm_rl.algorithms.policy_loss import build_policy_loss
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.algorithm import AlgorithmConfig, CorrectionConfig

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
