"""The GRPO loop: sample, score, advantage, train, sync, log, save.

Steps count over the whole run: warm-up steps first, then GRPO steps. Whatever happens between two
lines of `grpo_step`, the run can be resumed at the last saved step and goes on as if nothing had been.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_rl.config.run import RunConfig
from slurm_rl.errors import StopRequested
from slurm_rl.report.metrics import MetricsLogger
from slurm_rl.run_dir import RunDir, append_event, append_jsonl
from slurm_rl.train.data.order import PromptOrder
from slurm_rl.train.data.tokenize import EncodedPrompt
from slurm_rl.train.engine.optimizer import schedule_lr
from slurm_rl.train.grpo.batch import (
    build_answer_sequences,
    build_train_sequences,
    drop_without_gradient,
    rollout_logprobs,
    split_minibatches,
)
from slurm_rl.train.grpo.collect import Collected, collect_groups
from slurm_rl.train.grpo.dump import dump_groups, replay_groups
from slurm_rl.train.grpo.policy_group import PolicyGroup
from slurm_rl.train.grpo.sampling import Sampler, score_groups
from slurm_rl.train.grpo.saving import RunSaver, RunState
from slurm_rl.train.grpo.seeds import derive_seed
from slurm_rl.train.grpo.step_metrics import accuracy, pass_rates, sampling_metrics, training_metrics
from slurm_rl.train.grpo.types import Group, SamplingSpec
from slurm_rl.train.grpo.weight_sync import WeightSync
from slurm_rl.train.math.correction import mismatch_metrics
from slurm_rl.train.rewards.failures import check_failures
from slurm_rl.train.rewards.pool import RewardPool
from slurm_rl.train.types import FloatArray, TrainSequence


@dataclass
class Prompts:
    """What the loop draws from."""

    train: list[EncodedPrompt]
    held_out: list[EncodedPrompt]
    answers: list[list[int]]
    """Token ids of each training row's reference answer; empty without a warm-up."""


@dataclass
class Timer:
    """Seconds by phase of one step."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        key = f"time/{name}_s"
        self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - start


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
        rewards: RewardPool,
        saver: RunSaver,
        metrics: MetricsLogger,
    ) -> None:
        self.config, self.run_dir, self.prompts = config, run, prompts
        self.policy, self.sampler, self.sync, self.rewards = policy, sampler, sync, rewards
        self.saver, self.metrics = saver, metrics
        self.state = RunState()
        self.timer = Timer()
        self.probe_difference = 0.0
        self.order = PromptOrder(len(prompts.train), config.seed)
        self.num_warmup = config.warmup.num_steps

    def run(self, wait_for_engines: Callable[[], None]) -> RunState:
        """Train to the end, or save and raise StopRequested when asked to stop.

        Args:
            wait_for_engines: returns when the rollout engines are up; they start while the policy warms up.
        """
        restored = self.saver.restore()
        self.state = restored or RunState()
        self.metrics.rewind(self.state.step if restored else -1, self.state.num_metric_rows)
        try:
            self.warm_up()
            wait_for_engines()
            self.sync_weights()
            self.evaluate_if_due()
            self.save_if_due()
            while self.grpo_steps_done < self.config.trainer.num_steps:
                self.grpo_step()
                self.evaluate_if_due()
                self.save_if_due()
        except StopRequested:
            self.save()
            raise
        return self.state

    # ---- one step ------------------------------------------------------------------------------

    def grpo_step(self) -> None:
        """One GRPO step, from prompts to logged numbers."""
        self.timer = Timer()
        with self.timer.phase("step"):
            count = self.config.trainer.prompts_per_step
            found = collect_groups(self.draw, count, self.config.algorithm.dynamic_sampling_rounds)
            values = self.train(found.groups)
            self.state.step += 1
            self.state.prompts_used += found.num_rounds * count
            self.sync_weights()
        self.log(found, values)

    @property
    def grpo_steps_done(self) -> int:
        return self.state.step - self.num_warmup

    def draw(self, round_number: int) -> list[Group]:
        """The prompts of one round of this step, each with a scored group of completions."""
        if self.config.rollout.replay is not None:
            return replay_groups(Path(self.config.rollout.replay), self.state.step, round_number)
        count = self.config.trainer.prompts_per_step
        rows = self.order.take(self.state.prompts_used + round_number * count, count)
        purpose = f"rollout-{round_number}" if round_number else "rollout"
        with self.timer.phase("rollout"):
            spec = self.sampling_spec(purpose, self.config.algorithm.group_size)
            groups = self.sampler.sample([self.prompts.train[row] for row in rows], spec)
        scored = self.score(groups)
        if self.config.rollout.dump:
            dump_groups(self.run_dir.rollouts, self.state.step, round_number, scored)
        return scored

    def sampling_spec(self, purpose: str, num_completions: int, *, greedy: bool = False) -> SamplingSpec:
        rollout = self.config.rollout
        seed = derive_seed(self.config.seed, purpose, self.state.step)
        if greedy:
            return SamplingSpec(num_completions, rollout.max_tokens, 0.0, 1.0, seed)
        return SamplingSpec(num_completions, rollout.max_tokens, rollout.temperature, rollout.top_p, seed)

    def score(self, groups: Sequence[Group]) -> list[Group]:
        """Rewards of all completions; too many failures end the run."""
        with self.timer.phase("reward"):
            scored = score_groups(groups, self.rewards)
        results = [result for group in scored for result in group.results]
        check_failures(results, self.config.reward.max_failure_rate)
        return scored

    def train(self, groups: Sequence[Group]) -> dict[str, float]:
        """Advantages, then one optimizer step a minibatch and epoch; the step's numbers."""
        algorithm, trainer = self.config.algorithm, self.config.trainer
        with self.timer.phase("train"):
            plain = self.build_sequences(groups)
            policy = self.policy.policy_logprobs(plain) if algorithm.old_logprobs == "policy" else None
            reference = self.policy.reference_logprobs(plain) if algorithm.kl.coefficient > 0 else None
            sequences = self.build_sequences(groups, reference, policy)
            parts = split_minibatches(sequences, trainer.num_minibatches)
            batches = [drop_without_gradient(part, algorithm) for part in parts] * trainer.num_epochs
            totals = [self.policy.train_policy(batch, algorithm, self.lr()) for batch in batches]
        num_tokens = sum(sequence.num_trained for batch in batches for sequence in batch)
        values = training_metrics(totals, num_tokens)
        if policy is not None:
            # The loss measured against the policy's own logprobs: how far the step moved it.
            values |= mismatch_metrics(policy, rollout_logprobs(groups))
        # Every token of weight is in the loss; `computed` leaves out those whose gradient is known to be 0.
        in_loss = sum(sequence.num_trained for sequence in sequences if sequence.weight > 0)
        return {**values, "tokens/trained": float(in_loss), "tokens/computed": float(num_tokens)}

    def build_sequences(
        self,
        groups: Sequence[Group],
        reference: list[FloatArray] | None = None,
        policy: list[FloatArray] | None = None,
    ) -> list[TrainSequence]:
        limit = self.config.rollout.max_tokens
        return build_train_sequences(groups, self.config.algorithm, reference, max_tokens=limit, policy_logprobs=policy)

    def lr(self) -> float:
        return schedule_lr(self.config.optim, self.grpo_steps_done, self.config.trainer.num_steps)

    def sync_weights(self) -> None:
        with self.timer.phase("sync"):
            self.probe_difference = self.sync.push(self.state.step)

    # ---- around the step -----------------------------------------------------------------------

    def warm_up(self) -> None:
        """Supervised steps on reference answers, then a fresh optimizer."""
        size, warmup = self.config.warmup.batch_size, self.config.warmup
        order = PromptOrder(len(self.prompts.train), derive_seed(self.config.seed, "warmup"))
        while self.state.step < self.num_warmup:
            self.policy.cluster.stop.check()
            self.timer = Timer()
            with self.timer.phase("step"), self.timer.phase("train"):
                rows = order.take(self.state.step * size, size)
                sequences = build_answer_sequences(
                    [self.prompts.train[row] for row in rows], [self.prompts.answers[row] for row in rows]
                )
                lr = schedule_lr(warmup.optim, self.state.step, self.num_warmup)
                totals = self.policy.train_answers(sequences, lr)
            self.state.step += 1
            num_tokens = sum(sequence.num_trained for sequence in sequences)
            values = training_metrics([totals], num_tokens)
            self.write_row("warmup", {**values, "policy/lr": lr, **self.timer.seconds})
        if self.num_warmup and self.state.stage == "warmup":
            self.policy.use_optimizer(self.config.optim)
            self.state.stage = "grpo"
        self.prepare_reference()

    def prepare_reference(self) -> None:
        """The reference is the policy as GRPO found it: the model given, or the one the warm-up made."""
        if self.config.algorithm.kl.coefficient == 0:
            return
        reference = self.policy.model_path
        if self.num_warmup:
            reference = str(self.run_dir.reference)
            if not self.run_dir.reference.is_dir():
                self.policy.export(self.run_dir.reference)
        self.policy.load_reference(reference)

    def evaluate_if_due(self) -> None:
        """Evaluate before the first step, after the last, and every `eval.every` steps."""
        done, every = self.grpo_steps_done, self.config.eval.every
        is_last = done == self.config.trainer.num_steps
        due = done == 0 or is_last or (every and done % every == 0)
        if not due or self.state.evaluated_step == self.state.step:
            return
        found = self.evaluate()
        self.state.evaluated_step = self.state.step
        if self.state.best_accuracy is None or found["sampled"] > self.state.best_accuracy:
            self.state.best_accuracy, self.state.best_step = found["sampled"], self.state.step
        if done == 0:
            self.state.accuracy_before = found
        if is_last:
            self.state.accuracy_after = found

    def evaluate(self) -> dict[str, float]:
        """Accuracy on the held-out prompts, sampled and greedy; logged."""
        found: dict[str, float] = {}
        timer = Timer()
        with timer.phase("eval"):
            for name in ("sampled", "greedy") if self.config.eval.greedy else ("sampled",):
                greedy = name == "greedy"
                num_samples = 1 if greedy else self.config.eval.num_samples
                spec = self.sampling_spec(f"eval-{name}", num_samples, greedy=greedy)
                groups = score_groups(self.sampler.sample(self.prompts.held_out, spec), self.rewards)
                found[name] = accuracy([result for group in groups for result in group.results])
                if not greedy:
                    found |= pass_rates(groups)
        self.write_row("eval", {f"accuracy/{k}": v for k, v in found.items()} | timer.seconds)
        append_event(self.run_dir, "eval/done", step=self.state.step, **found)
        return found

    def write_row(self, stage: str, values: dict[str, float]) -> None:
        self.metrics.log(self.state.step, stage, values)
        self.state.num_metric_rows += 1

    def log(self, found: Collected, trained: dict[str, float]) -> None:
        values = {**sampling_metrics(found.sampled), **trained, "policy/lr": self.lr()}
        values["sync/probe_difference"] = self.probe_difference
        values["rollout/rounds"] = float(found.num_rounds)
        per_s = values["tokens/trained"] / self.timer.seconds["time/step_s"]
        seconds = {**self.timer.seconds, "time/tokens_per_s": per_s}
        self.write_row("grpo", {**values, **seconds})
        for group in found.sampled[: self.config.logging.samples_per_step]:
            completion, result = group.completions[0], group.results[0]
            row = {"prompt": group.prompt.text, "completion": completion.text, "answer": group.prompt.answer}
            append_jsonl(self.run_dir.samples, {"step": self.state.step, **row, "reward": result.value})

    def save_if_due(self) -> None:
        done, config = self.grpo_steps_done, self.config.checkpoint
        is_best = config.keep_best and self.state.best_step == self.state.step
        if done % config.every == 0 or done == self.config.trainer.num_steps or is_best:
            self.save()

    def save(self) -> None:
        self.saver.save(self.state)
