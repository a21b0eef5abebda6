"""From scored groups to optimizer steps: advantages, minibatches, steps of policy and critic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING

from slurm_rl.algorithms.credit import build_train_sequences, completion_kl, correct_sampler
from slurm_rl.algorithms.filters import drop_without_gradient, keep_sequences, split_minibatches
from slurm_rl.algorithms.kl import adapt_coefficient
from slurm_rl.algorithms.schedule import derive_seed, schedule_lr
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.algorithms.train_sequences import build_plain_sequences
from slurm_rl.config.run import RunConfig
from slurm_rl.config.sources import own_temperatures
from slurm_rl.data.groups import Group
from slurm_rl.workers.train_workers import WorkerGroup

if TYPE_CHECKING:
    from slurm_rl.workers.critic import Critic


@dataclass(frozen=True)
class Learned:
    """Results of one step of learning."""

    totals: list[dict[str, float]]
    """Loss, gradient norm and token sums of each optimizer step of the policy; empty without a gradient."""
    num_tokens: int
    """Number of tokens computed in all optimizer steps."""
    kl_coefficient: float | None
    """KL coefficient of the next step; None if it is constant."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the learning rates, the critic and the KL controller."""


class Learner:
    """Trains policy and critic on batches. It has no state: a step follows from its arguments.

    Args:
        reference: ranks that compute reference logprobs; the policy's ranks if they hold the reference.
    """

    def __init__(
        self, config: RunConfig, policy: WorkerGroup, reference: WorkerGroup, critic: Critic | None = None
    ) -> None:
        self.config, self.policy, self.reference, self.critic = config, policy, reference, critic
        self.temperatures = own_temperatures(config)

    @property
    def packed(self) -> bool:
        """Whether policy and reference read several sequences per row."""
        return self.policy.packed and self.reference.packed

    def learn(self, groups: Sequence[Group], step: int, kl_coefficient: float | None) -> Learned:
        """Compute advantages and take one optimizer step per minibatch and epoch.

        A minibatch without a gradient is skipped: Adam's momentum would still move the weights.

        Args:
            step: GRPO step, from 0.
            kl_coefficient: value chosen by the KL controller; None without one.
        """
        config, algorithm = self.config, self.config.algorithm
        if kl_coefficient is not None:
            algorithm = algorithm.model_copy(update={"kl": algorithm.kl.model_copy(update={"coef": kl_coefficient})})
        plain = build_plain_sequences(groups, self.temperatures)
        has_reference = config.algorithm.kl.coef > 0
        reference = self.reference.compute("reference_logprobs", plain) if has_reference else None
        values = None if self.critic is None else self.critic.values(plain)
        sequences = build_train_sequences(groups, algorithm, reference, values, self.temperatures)
        if config.correction_kind is not None:
            # With one optimizer step the training pass computes the same logprobs.
            is_one = config.trainer.num_updates == 1
            sequences = correct_sampler(sequences, None if is_one else self.policy.compute("logprobs", plain))
        minibatches = self._split(sequences, groups, step)
        kept = list(compress(sequences, keep_sequences(groups, algorithm.filters)))
        metrics = self._train_critic(minibatches, kept, step)
        critic_steps = 0 if self.critic is None else config.critic.warmup_steps
        # The schedule starts after the critic's warm-up.
        lr = schedule_lr(config.optim, step - critic_steps, config.trainer.num_steps - critic_steps)
        batches = [drop_without_gradient(it, algorithm) for it in (minibatches if step >= critic_steps else [])]
        batches = [batch for batch in batches if batch]
        totals = [self.policy.train("train", batch, algorithm, lr) for batch in batches]
        metrics |= {"policy/lr": lr if totals else 0.0, "policy/optimizer_steps": float(len(totals))}
        target = algorithm.kl.target if step >= critic_steps else None
        kl = completion_kl(groups, reference, algorithm) if target is not None and reference is not None else []
        if kl and target is not None:  # otherwise all rewards failed, or the coefficient is constant
            mean = sum(kl) / len(kl)
            kl_coefficient = adapt_coefficient(algorithm.kl.coef, mean, target, len(kl), algorithm.kl.horizon)
            metrics |= {"kl/completion": mean, "kl/coefficient": algorithm.kl.coef}
        num_tokens = sum(sequence.num_trained for batch in batches for sequence in batch)
        return Learned(totals, num_tokens, kl_coefficient, metrics)

    def _split(
        self, sequences: Sequence[TrainSequence], groups: Sequence[Group], step: int
    ) -> list[list[TrainSequence]]:
        """Return the minibatches of all epochs; the order of each epoch follows from seed and step."""
        trainer = self.config.trainer
        place = (self.config.seed, "minibatches", self.config.warmup.num_steps + step)
        return [
            part
            for epoch in range(trainer.num_epochs)
            for part in split_minibatches(
                sequences, groups, self.config.algorithm, trainer.num_minibatches, derive_seed(*place, epoch)
            )
        ]

    def _train_critic(
        self, minibatches: Sequence[Sequence[TrainSequence]], kept: Sequence[TrainSequence], step: int
    ) -> dict[str, float]:
        """Train the critic on the returns, and return its metrics; empty without a critic.

        Args:
            kept: sequences of one epoch.
        """

        from slurm_rl.workers.critic import value_metrics

        if self.critic is None or not minibatches:
            return {}
        config = self.config.critic
        lr = schedule_lr(config.optim, step, self.config.trainer.num_steps)
        return value_metrics(kept) | self.critic.train(minibatches, config.clip, lr)
