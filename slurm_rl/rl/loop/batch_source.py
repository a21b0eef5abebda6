"""What each step samples: its prompts, the request for their completions, and the rewards of what comes."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_rl.config.run import RunConfig
from slurm_rl.data.order import PromptOrder
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.math.schedule import derive_seed
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.rl.algorithm.train_sequences import shape_overlong
from slurm_rl.rl.loop.pipeline import Batch
from slurm_rl.rl.rollout.sampling import PendingGroups, Sampler, build_spec, gather_arrivals, score_arrivals
from slurm_rl.train.stop import Timer


class BatchSource:
    """The batch of a GRPO step follows from the step alone, so a resumed run draws it again.

    Args:
        prompts: those to train on.
    """

    def __init__(self, config: RunConfig, prompts: Sequence[EncodedPrompt], sampler: Sampler, rewards: Scorer) -> None:
        self.config, self.prompts, self.sampler, self.rewards = config, prompts, sampler, rewards
        self.order = PromptOrder(len(prompts), config.seed)
        self.refill_order = PromptOrder(len(prompts), derive_seed(config.seed, "refill"))

    def start(self, grpo_step: int) -> PendingGroups:
        """Ask for the completions of a step's prompts; returns at once."""
        count = self.config.trainer.prompts_per_step
        return self._start("rollout", grpo_step, self.order.take(grpo_step * count, count))

    def start_refill(self, grpo_step: int, round_number: int) -> PendingGroups:
        """The same for other prompts: those of a further round (>= 1) of dynamic sampling."""
        count, rounds = self.config.trainer.prompts_per_step, self.config.algorithm.dynamic_sampling_rounds
        rows = self.refill_order.take((grpo_step * rounds + round_number) * count, count)
        return self._start(f"refill-{round_number}", grpo_step, rows)

    def _start(self, purpose: str, grpo_step: int, rows: Sequence[int]) -> PendingGroups:
        step = self.config.warmup.num_steps + grpo_step
        spec = build_spec(self.config, purpose, step, self.config.algorithm.group_size)
        return self.sampler.start([self.prompts[row] for row in rows], spec)

    def finish(self, pending: PendingGroups, within_s: float | None) -> Batch:
        """Wait for the completions and score them; beside the loop, when it runs ahead."""
        timer = Timer()
        arrivals = self.sampler.arrivals(pending, within_s)
        if self.config.reward.model.path is not None and not self.config.rollout.continuous:
            # A model's last digits depend on what it reads together, which time must not decide.
            arrivals = gather_arrivals(arrivals)
        scored = score_arrivals(arrivals, self.rewards, timer)
        scored = shape_overlong(scored, self.config.algorithm.overlong, self.config.rollout.max_tokens)
        return Batch(scored, {name: timer.seconds[f"time/{name}_s"] for name in ("rollout", "reward")})
