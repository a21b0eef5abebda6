"""The GRPO loop: sample, score, learn, sync, log, save.

Steps count over the whole run: warm-up steps first, then GRPO steps. The run resumes from the last checkpoint with
identical metrics, wherever it was interrupted.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slurm_rl.config.sources import blocks_on_weights, resumes_from_log
from slurm_rl.errors import StopRequested
from slurm_rl.node.stop import Timer
from slurm_rl.run_dir.step_log import SAVE
from slurm_rl.trainers.common.cadence import open_cadence
from slurm_rl.trainers.grpo.batch_queue import BatchQueue, Collected, PromptSchedule
from slurm_rl.trainers.grpo.evaluation import Evaluator
from slurm_rl.trainers.grpo.rollout_files import log_samples
from slurm_rl.trainers.grpo.step_metrics import (
    curriculum_metrics,
    kept_metrics,
    sampling_metrics,
    score_rows,
    staleness_metrics,
    training_metrics,
)
from slurm_rl.trainers.grpo.trainer_state import RunSaver, TrainerState
from slurm_rl.trainers.grpo.warmup import prepare_models, warm_up

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig
    from slurm_rl.data.groups import Prompts
    from slurm_rl.rollout.sampling import Rollouts, Sampler
    from slurm_rl.rollout.weights.sync import WeightSync
    from slurm_rl.run_dir.run_dir import RunDir
    from slurm_rl.trainers.common.metrics_log import MetricsLogger
    from slurm_rl.trainers.grpo.eval_sets import EvalSet
    from slurm_rl.trainers.grpo.learner import Learned, Learner

_LAST_SAVE_S = 30.0
"""Seconds that a failing run waits for a checkpoint in progress; its workers may be dead."""
_GC_THRESHOLDS = 100_000, 20, 20
"""Python's own 700, 10, 10 take a quarter of the driver's time with 10,000 episodes (benchmarks/many_episodes.py)."""
_NO_LOCK: AbstractContextManager[Any] = nullcontext()


def collect_rarely() -> None:
    """Reduce the frequency of Python's garbage collection in this process."""
    gc.set_threshold(*_GC_THRESHOLDS)


def collect_step() -> None:
    """Free the reference cycles of a step."""
    gc.collect(1)


@dataclass(frozen=True)
class StepResult:
    """Results of one step; its row of metrics.jsonl is made only from this."""

    collected: Collected
    learned: Learned
    probe_difference: float
    """Logprob difference on the probe of the newest verified weights."""
    seconds: dict[str, float]


class GRPOTrainer:
    """Synchronous or asynchronous GRPO loop; all components are injected."""

    def __init__(
        self,
        config: RunConfig,
        run: RunDir,
        prompts: Prompts,
        learner: Learner,
        sampler: Sampler,
        rollouts: Rollouts,
        sync: WeightSync,
        saver: RunSaver,
        metrics: MetricsLogger,
        *,
        sets: Sequence[EvalSet] = (),
        policy_lock: AbstractContextManager[Any] = _NO_LOCK,
    ) -> None:
        self.config, self.run_dir, self.prompts = config, run, prompts
        self.learner, self.sampler, self.sync = learner, sampler, sync
        self.saver, self.metrics, self.policy_lock = saver, metrics, policy_lock
        self.state = TrainerState()
        self.cadence = open_cadence(run, config)
        schedule = PromptSchedule(config, prompts.train, lambda: self.state.solve_rates)
        self.queue = BatchQueue(config, run, schedule, rollouts, is_journalled=resumes_from_log(config))
        self.evaluator = Evaluator(config, run, prompts.held_out, rollouts, sync, self.write_row, sets)

    def run(self, wait_for_engines: Callable[[], None]) -> TrainerState:
        """Train to the end, or save and raise StopRequested at a stop signal.

        Args:
            wait_for_engines: returns when the rollout engines are up; they start during the warm-up.
        """
        restored = self.saver.restore()
        if restored:
            self.state, rollouts = restored
            self.queue.restore(rollouts)
            self.cadence.resume(self.steps_done)
        self.metrics.rewind(self.state.step if restored else -1, self.state.num_metric_rows)
        collect_rarely()
        try:
            self.begin(wait_for_engines)
            while self.steps_done < self.config.trainer.num_steps:
                self.log(self.grpo_step())
                self.evaluator.run_if_due(self.state)
                self.save_if_due()
                collect_step()
            self.sync.verify()
            self.saver.wait()
            self.metrics.steps.add(self.state.step, SAVE)
        except StopRequested:
            self.metrics.steps.mark()  # discard the times of the interrupted step
            self.save(wait_s=self.saver.settle_s())
            self.saver.wait()
            self.metrics.steps.add(self.state.step, SAVE)
            raise
        finally:
            self.queue.close()
            self.saver.close(_LAST_SAVE_S)
        return self.state

    def begin(self, wait_for_engines: Callable[[], None]) -> None:
        """Warm up while the engines start, send the weights, and evaluate before training."""
        if self.config.rollout.colocate:  # engines are up and asleep
            self.sync.transport.open()
            self.leave_gpus_to_the_policy(Timer())
            self.warm_up()
        else:
            self.warm_up()
            wait_for_engines()
            self.sync.transport.open()
        self.push_weights(Timer())
        self.verify_weights(Timer())
        self.sync.verify()
        self.metrics.steps.mark()
        self.evaluator.run_if_due(self.state)
        self.save_if_due()

    def warm_up(self) -> None:
        """Run the supervised steps on reference answers, then initialize reference and critic from the policy."""
        learner = self.learner
        self.metrics.steps.mark()
        warm_up(self.config, self.prompts, learner.policy, self.state, self.write_row)
        prepare_models(self.config, self.run_dir, learner, self.saver)

    @property
    def steps_done(self) -> int:
        """Number of GRPO steps so far, without the warm-up."""
        return self.state.step - self.config.warmup.num_steps

    # ---- one step ------------------------------------------------------------------------------

    def grpo_step(self) -> StepResult:
        """Run one GRPO step, from prompts to new weights in the engines."""

        from slurm_rl.data.curriculum import note_scores

        timer = Timer()
        with timer.phase("step"):
            collected = self.queue.take(self.steps_done, timer)
            self.leave_gpus_to_the_policy(timer)
            with self.policy_lock:  # weights get their version when they are sent
                with timer.phase("train"):
                    learned = self.learner.learn(collected.groups, self.steps_done, self.state.kl_coefficient)
                self.state.kl_coefficient = learned.kl_coefficient
                self.state.step += 1
                if self.config.data.curriculum is not None:
                    note_scores(self.state.solve_rates, score_rows(collected.sampled))
                self.push_weights(timer)
            probe_difference = self.verify_weights(timer)
        return StepResult(collected, learned, probe_difference, timer.seconds)

    def leave_gpus_to_the_policy(self, timer: Timer) -> None:
        """Put engines on the policy's GPUs to sleep until the next weights."""
        if self.config.rollout.colocate:
            with timer.phase("sleep"):
                self.sampler.sleep()

    def push_weights(self, timer: Timer) -> None:
        """Send the weights without waiting; episodes that must not mix versions end first."""
        if blocks_on_weights(self.config):
            with timer.phase("rollout"):
                self.queue.wait(self.saver.settle_s)
        with timer.phase("sync"):
            self.sync.push(self.state.step)

    def verify_weights(self, timer: Timer) -> float:
        """Wait for weight pushes and return the largest logprob difference on the probe.

        With `max_off_policy_steps=k` the newest k pushes may still be in flight. Asynchronous engines take weights at
        once and out of order with requests, so all pushes are verified: a later request must not start with older
        weights.
        """
        with timer.phase("sync"):
            return self.sync.verify(leave=0 if self.config.has_async_engines else self.queue.staleness)

    # ---- around the step -----------------------------------------------------------------------

    def log(self, result: StepResult) -> None:
        """Log the metrics of the step and a few of its completions."""
        groups = result.collected.groups
        self.write_row("grpo", self.describe(result))
        log_samples(self.run_dir, self.state.step, groups[: self.config.logging.samples_per_step])

    def describe(self, result: StepResult) -> dict[str, float]:
        """Return the metrics of a step; all but times and the sync's follow from config and seed."""
        config, learned, groups = self.config, result.learned, result.collected.groups
        kept = kept_metrics(groups, config.algorithm.filters)
        num_kept = round(kept["tokens/trained"]) * config.trainer.num_epochs
        values = {
            **sampling_metrics(result.collected.sampled),
            **(training_metrics(learned.totals, learned.num_tokens, num_kept) if learned.totals else {}),
            "policy/packed": float(self.learner.packed),
            **learned.metrics,
            **kept,
            # Without tokens whose gradient is 0.
            "tokens/computed": float(learned.num_tokens),
        }
        if config.data.curriculum is not None:
            values |= curriculum_metrics(self.state.solve_rates, config.data.curriculum)
        if config.algorithm.dynamic_sampling_rounds > 1:
            values["rollout/rounds"] = float(result.collected.num_rounds)
        if self.queue.staleness:
            values |= staleness_metrics(groups, self.state.step - 1, mixed=config.rollout.inflight_weight_updates)
        else:
            values["sync/probe_difference"] = result.probe_difference
            values["sync/megabytes"] = self.sync.num_bytes / 1e6
        per_s = values["tokens/trained"] / result.seconds["time/step_s"]
        return {**values, **result.seconds, "time/tokens_per_s": per_s}

    def write_row(self, stage: str, values: dict[str, float]) -> None:
        self.metrics.log(self.state.step, stage, values)
        self.state.num_metric_rows += 1

    def save_if_due(self) -> None:
        self.saver.check()
        self.saver.tidy(self.state.step)
        if (
            self.cadence.is_due(self.steps_done)
            or self.steps_done == self.config.trainer.num_steps
            or self.state.best_step == self.state.step
        ):
            self.save(wait_s=self.config.trainer.step_timeout_s)

    def save(self, *, wait_s: float) -> None:
        """Save a checkpoint of this step with the batches in flight that end within `wait_s`."""
        self.saver.save(self.state, self.queue.drain(wait_s))
        self.metrics.steps.add(self.state.step, SAVE)
        self.cadence.saved(self.steps_done, self.metrics.steps)
