"""From the config's rows to the loss of one packed batch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.train.math.kl import compute_kl
from slurm_rl.train.math.losses import POLICY_LOSSES, ClipRange, LossInputs, nll
from slurm_rl.train.types import PackedBatch

BatchLoss = Callable[[PackedBatch, Tensor, Tensor], tuple[Tensor, dict[str, float]]]
"""(batch, logprobs [N], entropy [N]) -> (loss summed over tokens, sums over tokens for the metrics)."""


def build_policy_loss(config: AlgorithmConfig) -> BatchLoss:
    """The policy loss with its KL term; token weights come with the batch.

    Its sums are over the tokens of the batch, which are those with a gradient; see `training_metrics`.
    """
    policy_loss = POLICY_LOSSES[config.loss]
    clip = ClipRange(low=config.clip_low, high=config.clip_high, dual=config.clip_dual)
    kl_in_loss = config.kl.where == "loss"

    def compute(batch: PackedBatch, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, float]]:
        assert batch.old_logprobs is not None
        inputs = LossInputs(
            logprobs=logprobs,
            old_logprobs=batch.old_logprobs,
            advantages=batch.advantages,
            sequence_ids=batch.sequence_ids,
            num_sequences=batch.num_sequences,
        )
        token = policy_loss(inputs, clip)
        loss = (token.loss * batch.weights).sum()
        if config.entropy_bonus > 0:
            loss = loss - config.entropy_bonus * (entropy * batch.weights).sum()
        mismatch = logprobs.detach() - batch.old_logprobs
        sums = {
            "policy/clip_fraction": float(token.clipped.sum()),
            "entropy/mean": float(entropy.detach().sum()),
            # Of the sampler to the policy: what the two programs disagree on for the same weights.
            "mismatch/kl": float(compute_kl(batch.old_logprobs, logprobs.detach(), "k3").sum()),
            "mismatch/mean": float(mismatch.abs().sum()),
            "mismatch/max": float(mismatch.abs().max()),
        }
        if batch.ref_logprobs is not None:
            kl = compute_kl(logprobs, batch.ref_logprobs, config.kl.estimator)
            sums["kl/reference"] = float(kl.detach().sum())
            if kl_in_loss:
                loss = loss + config.kl.coefficient * (kl * batch.weights).sum()
        return loss, sums

    return compute


def build_warmup_loss() -> BatchLoss:
    """Negative log-likelihood of the reference answers."""

    def compute(batch: PackedBatch, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, float]]:
        return (nll(logprobs).loss * batch.weights).sum(), {"entropy/mean": float(entropy.sum())}

    return compute
