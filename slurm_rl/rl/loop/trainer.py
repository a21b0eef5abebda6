"""The GRPO loop: sample, score, advantage, train, sync, log, save.

Steps count over the whole run: warm-up steps first, then GRPO steps. Whatever happens between two
lines of `grpo_step`, the run can be resumed at the last saved step and goes on as if nothing had been.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from pathlib import Path

from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import StopRequested
from slurm_rl.math.kl import adapt_coefficient
from slurm_rl.math.schedule import schedule_lr
from slurm_rl.math.seeds import derive_seed
from slurm_rl.math.sequences import FloatArray, TrainSequence
from slurm_rl.report.metrics import MetricsLogger
from slurm_rl.rewards.failures import FailureWatch
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.rl.algorithm.minibatches import drop_without_gradient, keep_mask, split_minibatches
from slurm_rl.rl.algorithm.train_sequences import (
    build_plain_sequences,
    build_train_sequences,
    completion_kl,
    correct_sampler,
)
from slurm_rl.rl.groups import Group, Prompts
from slurm_rl.rl.loop.batch_source import BatchSource
from slurm_rl.rl.loop.collect import Collected, collect_groups
from slurm_rl.rl.loop.evaluation import Evaluator
from slurm_rl.rl.loop.pipeline import RolloutPipeline, staleness_metrics
from slurm_rl.rl.loop.rollout_files import dump_groups, log_samples, replay_groups
from slurm_rl.rl.loop.run_state import RunSaver, RunState
from slurm_rl.rl.loop.step_metrics import kept_metrics, sampling_metrics, training_metrics
from slurm_rl.rl.loop.warmup import prepare_models, warm_up
from slurm_rl.rl.rollout.sampling import Sampler
from slurm_rl.rl.weights.sync import WeightSync
from slurm_rl.rl.workers.critic import CriticGroup, value_metrics
from slurm_rl.rl.workers.policy_group import PolicyGroup
from slurm_rl.run_dir import RunDir
from slurm_rl.train.timer import Timer

# A run that fails gives a checkpoint under way so long; its workers may be dead.
_LAST_SAVE_S = 30.0


class GRPOTrainer:
    """Owns the order of things; every piece of machinery is handed in."""

    def __init__(
        self,
        config: RunConfig,
        run: RunDir,
        prompts: Prompts,
        policy: PolicyGroup,
        sampler: Sampler,
        sync: WeightSync,
        rewards: Scorer,
        saver: RunSaver,
        metrics: MetricsLogger,
        critic: CriticGroup | None = None,
    ) -> None:
        self.config, self.run_dir, self.prompts = config, run, prompts
        self.policy, self.sampler, self.sync = policy, sampler, sync
        self.saver, self.metrics, self.critic = saver, metrics, critic
        self.state = RunState()
        self.timer = Timer()
        self.failures = FailureWatch(config.reward.max_failure_rate)
        self.probe_difference = 0.0
        self.collected = Collected([], [], 0)
        self.extra: dict[str, float] = {}
        self.num_warmup = config.warmup.num_steps
        self.source = BatchSource(config, prompts.train, sampler, rewards)
        self.evaluator = Evaluator(config, run, prompts.held_out, sampler, sync, rewards, self.write_row)
        self.pipeline = RolloutPipeline(
            self.source.start,
            self.source.finish,
            staleness=config.rollout.max_staleness,
            num_steps=config.trainer.num_steps,
        )

    def run(self, wait_for_engines: Callable[[], None]) -> RunState:
        """Train to the end, or save and raise StopRequested when asked to stop.

        Args:
            wait_for_engines: returns when the rollout engines are up; they start while the policy warms up.
        """
        restored = self.saver.restore()
        if restored:
            self.state, rollouts = restored
            self.pipeline.restore(rollouts)
        self.metrics.rewind(self.state.step if restored else -1, self.state.num_metric_rows)
        try:
            if self.config.rollout.colocate:
                wait_for_engines()
                self.leave_gpus_to_the_policy()
                self.warm_up()
            else:
                self.warm_up()
                wait_for_engines()
            self.sync_weights()
            self.sync.verify()
            self.evaluator.run_if_due(self.state)
            self.save_if_due()
            while self.grpo_steps_done < self.config.trainer.num_steps:
                self.grpo_step()
                self.evaluator.run_if_due(self.state)
                self.save_if_due()
            self.sync.verify()
            self.saver.wait()
        except StopRequested:
            self.save(wait_s=self.config.job.signal_lead_s / 2)
            self.saver.wait()
            raise
        finally:
            self.pipeline.close()
            self.saver.close(_LAST_SAVE_S)
        return self.state

    # ---- one step ------------------------------------------------------------------------------

    def grpo_step(self) -> None:
        """One GRPO step, from prompts to logged numbers."""
        self.timer = Timer()
        with self.timer.phase("step"):
            groups = self.take_batch()
            self.leave_gpus_to_the_policy()
            totals, num_tokens = self.train(groups)
            self.state.step += 1
            self.sync_weights()
        self.log(groups, totals, num_tokens)

    def leave_gpus_to_the_policy(self) -> None:
        """Engines on the policy's own GPUs sleep until `sync_weights`."""
        if self.config.rollout.colocate:
            with self.timer.phase("sleep"):
                self.sampler.sleep()

    def take_batch(self) -> list[Group]:
        """This step's groups, sampled and scored; too many failed rewards end the run."""
        rollout = self.config.rollout
        with self.timer.phase("rollout"):
            if rollout.replay is not None:
                groups = replay_groups(Path(rollout.replay), self.state.step)
                self.collected = Collected(groups, groups, 1)
                return groups
            batch = self.pipeline.take(self.grpo_steps_done)
        if self.pipeline.staleness == 0:
            self.timer.seconds["time/reward_s"] = batch.seconds.get("reward", 0.0)
            self.timer.seconds["time/rollout_s"] -= batch.seconds.get("reward", 0.0)
        else:
            waited = self.timer.seconds["time/rollout_s"]
            self.timer.seconds["time/hidden_s"] = max(sum(batch.seconds.values()) - waited, 0.0)
        self.collected = collect_groups(
            lambda round_number: self.refill(round_number) if round_number else batch.groups,
            self.config.trainer.prompts_per_step,
            self.config.algorithm.dynamic_sampling_rounds,
        )
        self.failures.check([result for group in self.collected.sampled for result in group.results])
        if rollout.dump:
            dump_groups(self.run_dir.rollouts, self.state.step, self.collected.groups)
        return self.collected.groups

    def refill(self, round_number: int) -> list[Group]:
        """Other prompts for dynamic sampling."""
        with self.timer.phase("refill"):
            return self.source.finish(self.source.start_refill(self.grpo_steps_done, round_number), None).groups

    @property
    def grpo_steps_done(self) -> int:
        return self.state.step - self.num_warmup

    def train(self, groups: Sequence[Group]) -> tuple[list[dict[str, float]], int]:
        """Advantages and one optimizer step a minibatch and epoch; totals of each, and the tokens computed on.

        A minibatch without a gradient takes no step: Adam's momentum alone would move the weights.
        """
        algorithm, lr = self.algorithm(), self.lr()
        with self.timer.phase("train"):
            proximal = self.proximal_logprobs(groups)
            reference = self.reference_logprobs(groups)
            values = None if self.critic is None else self.critic.values(build_plain_sequences(groups))
            sequences = build_train_sequences(groups, algorithm, reference, values)
            if self.config.correction_kind is not None:
                sequences = correct_sampler(sequences, proximal)
            minibatches = self.split(sequences, groups)
            kept = keep_mask(groups, algorithm.filters)
            self.extra = self.train_critic(minibatches, list(compress(sequences, kept)))
            batches = [] if self.critic_learns_alone else [drop_without_gradient(it, algorithm) for it in minibatches]
            batches = [batch for batch in batches if batch]
            totals = [self.policy.train_policy(batch, algorithm, lr) for batch in batches]
        self.extra |= {"policy/lr": lr if totals else 0.0, "policy/optimizer_steps": float(len(totals))}
        if not self.critic_learns_alone:
            self.adapt_kl(groups, reference)
        return totals, sum(sequence.num_trained for batch in batches for sequence in batch)

    def split(self, sequences: Sequence[TrainSequence], groups: Sequence[Group]) -> list[list[TrainSequence]]:
        """The minibatches of all epochs, each epoch in an order of its own that follows from seed and step."""
        trainer = self.config.trainer
        place = (self.config.seed, "minibatches", self.state.step)
        return [
            part
            for epoch in range(trainer.num_epochs)
            for part in split_minibatches(
                sequences, groups, self.config.algorithm, trainer.num_minibatches, derive_seed(*place, epoch)
            )
        ]

    def train_critic(
        self, minibatches: Sequence[Sequence[TrainSequence]], kept: Sequence[TrainSequence]
    ) -> dict[str, float]:
        """The critic learns the returns; its numbers, empty where there is none.

        Args:
            kept: the sequences of one epoch.
        """
        if self.critic is None or not minibatches:
            return {}
        config = self.config.critic
        lr = schedule_lr(config.optim, self.grpo_steps_done, self.config.trainer.num_steps)
        return value_metrics(kept) | self.critic.train(minibatches, config.clip, lr)

    @property
    def critic_learns_alone(self) -> bool:
        return self.critic is not None and self.grpo_steps_done < self.config.critic.warmup_steps

    def algorithm(self) -> AlgorithmConfig:
        """The learning rule of this step: the KL coefficient may have moved."""
        algorithm, coefficient = self.config.algorithm, self.state.kl_coefficient
        if coefficient is None:
            return algorithm
        return algorithm.model_copy(update={"kl": algorithm.kl.model_copy(update={"coefficient": coefficient})})

    def adapt_kl(self, groups: Sequence[Group], reference: Sequence[FloatArray] | None) -> None:
        """Choose the next step's KL coefficient, where it has a target."""
        kl = self.config.algorithm.kl
        if kl.target is None or reference is None:
            return
        found = completion_kl(groups, reference, self.config.algorithm)
        if not found:
            return
        before, mean = self.algorithm().kl.coefficient, sum(found) / len(found)
        self.extra |= {"kl/completion": mean, "kl/coefficient": before}
        self.state.kl_coefficient = adapt_coefficient(before, mean, kl.target, len(found), kl.horizon)

    def proximal_logprobs(self, groups: Sequence[Group]) -> list[FloatArray] | None:
        """What the policy says of the completions before it trains on them; None where the ratio is taken to the
        sampler, or where all of them make one optimizer step, whose own forward pass says the same."""
        if self.config.correction_kind is None or self.config.trainer.num_updates == 1:
            return None
        return self.policy.policy_logprobs(build_plain_sequences(groups))

    def reference_logprobs(self, groups: Sequence[Group]) -> list[FloatArray] | None:
        if self.config.algorithm.kl.coefficient == 0:
            return None
        return self.policy.reference_logprobs(build_plain_sequences(groups))

    def lr(self) -> float:
        """Learning rate of the policy's next step; its schedule begins when the critic has had its steps alone."""
        alone = 0 if self.critic is None else self.config.critic.warmup_steps
        return schedule_lr(self.config.optim, self.grpo_steps_done - alone, self.config.trainer.num_steps - alone)

    def sync_weights(self) -> None:
        """Send the new weights. Who samples ahead waits for older ones alone, which engines have had time to take.

        Continuous engines take them at once, and out of order with requests: what is asked for after this must not
        begin with older ones, or the bound on staleness would not hold.
        """
        with self.timer.phase("sync"):
            self.sync.push(self.state.step)
            leave = 0 if self.config.rollout.continuous else self.pipeline.staleness
            self.probe_difference = self.sync.verify(leave=leave)

    # ---- around the step -----------------------------------------------------------------------

    def warm_up(self) -> None:
        """Supervised steps on reference answers, then what begins as the policy does now."""
        warm_up(self.config, self.prompts, self.policy, self.state, self.write_row)
        prepare_models(self.config, self.run_dir, self.policy, self.critic, self.saver)

    def write_row(self, stage: str, values: dict[str, float]) -> None:
        self.metrics.log(self.state.step, stage, values)
        self.state.num_metric_rows += 1

    def log(self, groups: Sequence[Group], totals: Sequence[dict[str, float]], num_tokens: int) -> None:
        kept = kept_metrics(groups, self.config.algorithm.filters)
        num_kept = round(kept["tokens/trained"]) * self.config.trainer.num_epochs
        values = {
            **sampling_metrics(self.collected.sampled),
            **(training_metrics(totals, num_tokens, num_kept) if totals else {}),
            "policy/packed": float(self.policy.packed),
            **self.extra,
            **kept,
        }
        if self.config.algorithm.dynamic_sampling_rounds > 1:
            values["rollout/rounds"] = float(self.collected.num_rounds)
        # What the filters keep is in the loss; `computed` leaves out tokens whose gradient is known to be 0.
        values["tokens/computed"] = float(num_tokens)
        if self.pipeline.staleness:
            values |= staleness_metrics(groups, self.state.step - 1, mixed=self.config.rollout.continuous)
        else:
            values["sync/probe_difference"] = self.probe_difference
        per_s = values["tokens/trained"] / self.timer.seconds["time/step_s"]
        seconds = {**self.timer.seconds, "time/tokens_per_s": per_s}
        self.write_row("grpo", {**values, **seconds})
        log_samples(self.run_dir, self.state.step, groups[: self.config.logging.samples_per_step])

    def save_if_due(self) -> None:
        self.saver.check()
        if (
            self.grpo_steps_done % self.config.checkpoint.every == 0
            or self.grpo_steps_done == self.config.trainer.num_steps
            or self.state.best_step == self.state.step
        ):
            self.save(wait_s=self.config.trainer.step_timeout_s)

    def save(self, *, wait_s: float) -> None:
        """A checkpoint of this step, with the batches under way that are there within `wait_s`."""
        self.saver.save(self.state, self.pipeline.settle(wait_s))
