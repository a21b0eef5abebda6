"""Policy loss of one packed batch, built from the config."""

from collections.abc import Callable

from torch import Tensor

from slurm_rl.algorithms.kl import compute_kl
from slurm_rl.algorithms.losses import ClipRange, CorrectionInputs, LossInputs, TokenLoss, exp_bounded
from slurm_rl.algorithms.sequences import PackedBatch
from slurm_rl.config.algorithm import AlgorithmConfig, CorrectionConfig
from slurm_rl.config.registry import CORRECTIONS, LossEntry, find_loss
from slurm_rl.errors import ConfigError

BatchLoss = Callable[[PackedBatch, Tensor, Tensor], tuple[Tensor, dict[str, float]]]
"""(batch, logprobs [N], entropy [N]) -> (loss summed over tokens, sums over tokens for the metrics)."""


def build_policy_loss(config: AlgorithmConfig, correction: str | None) -> BatchLoss:
    """Return the policy loss with its KL term; token weights come with the batch.

    Sums are over the tokens of the batch, all of which have a gradient; see `training_metrics`.

    Args:
        correction: registered importance correction for batches with sampler_logprobs. Its factors scale advantages:
            every loss is linear in them, and the factors are not negative.
    """
    row = find_loss(config.loss)
    correct = None if correction is None else CORRECTIONS[correction].load()
    clip = ClipRange(low=config.clip_ratio_low, high=config.clip_ratio_high, dual=config.clip_ratio_c)
    kl_in_loss = config.kl.apply_to == "loss"

    def compute(batch: PackedBatch, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, float]]:
        # With one optimizer step per batch the policy is unchanged since the start of the step.
        old_logprobs = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
        # Logprobs of sampler and policy for the same weights.
        sampler, policy = old_logprobs, logprobs.detach()
        advantages = batch.advantages
        corrected: dict[str, float] = {}
        if correct is not None and batch.sampler_logprobs is not None:
            sampler, policy = batch.sampler_logprobs, old_logprobs
            factors = correct(_compare(batch, policy - sampler, config.correction))
            advantages = advantages * factors
            dropped = float((factors == 0).sum())
            corrected = {"correction/weight_mean": float(factors.sum()), "correction/dropped": dropped}
        inputs = LossInputs(
            logprobs=logprobs,
            old_logprobs=old_logprobs,
            advantages=advantages,
            sequence_ids=batch.sequence_ids,
            num_sequences=batch.num_sequences,
        )
        token = compute_loss(row, inputs, clip)
        loss = (token.loss * batch.weights).sum()
        if config.entropy_coef > 0:
            loss = loss - config.entropy_coef * (entropy * batch.weights).sum()
        sums = {
            "policy/clip_fraction": float(token.clipped.sum()),
            "entropy/mean": float(entropy.detach().sum()),
            # Difference of the two programs for the same weights.
            "mismatch/kl": float(compute_kl(sampler, policy, "k3").sum()),
            "mismatch/mean": float((policy - sampler).abs().sum()),
            "mismatch/max": float((policy - sampler).abs().max()),
            **corrected,
        }
        if batch.ref_logprobs is not None:
            kl = compute_kl(logprobs, batch.ref_logprobs, config.kl.estimator)
            sums["kl/reference"] = float(kl.detach().sum())
            if kl_in_loss:
                term = kl * exp_bounded(logprobs - old_logprobs) if config.kl.bias_correction else kl
                loss = loss + config.kl.coef * (term * batch.weights).sum()
        return loss, sums

    return compute


def compute_loss(row: LossEntry, inputs: LossInputs, clip: ClipRange) -> TokenLoss:
    """Return loss and clip flag per token, from the registered function.

    Raises:
        ConfigError: a user's function returned something else.
    """
    token, shape = row.load()(inputs, clip), inputs.logprobs.shape
    if not isinstance(token, TokenLoss) or token.loss.shape != shape or token.clipped.shape != shape:
        parts = (token.loss, token.clipped) if isinstance(token, TokenLoss) else (token,)
        found = [str(list(part.shape)) if isinstance(part, Tensor) else type(part).__name__ for part in parts]
        raise ConfigError(
            f"algorithm.loss ({row.function}) must return algorithms.losses.TokenLoss: loss and clip flag per token",
            seen=f"{' and '.join(found)} for {list(shape)} tokens",
            action="correct the function and submit again",
        )
    return token


def _compare(batch: PackedBatch, log_ratio: Tensor, config: CorrectionConfig) -> CorrectionInputs:
    return CorrectionInputs(
        log_ratio=log_ratio,
        sequence_ids=batch.sequence_ids,
        num_sequences=batch.num_sequences,
        low=config.low,
        high=config.high,
    )


def build_warmup_loss() -> BatchLoss:
    """Negative log-likelihood of the reference answers."""

    def compute(batch: PackedBatch, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, float]]:
        return (-logprobs * batch.weights).sum(), {"entropy/mean": float(entropy.sum())}

    return compute
