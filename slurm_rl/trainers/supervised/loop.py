"""Loop of SFT, reward models and DPO: train, evaluate, save. Every rank runs it with the same state.

The run resumes from the last checkpoint with identical metrics.
"""

from collections.abc import Sequence
from dataclasses import replace

from slurm_rl.algorithms.schedule import count_steps, derive_seed, schedule_lr
from slurm_rl.config.run import RunConfig
from slurm_rl.data.split import PromptOrder
from slurm_rl.errors import StopRequested
from slurm_rl.models import distributed
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.node.stop import StopFlag, Timer
from slurm_rl.run_dir.run_dir import RunDir, append_event
from slurm_rl.run_dir.step_log import SAVE
from slurm_rl.trainers.common.cadence import open_cadence
from slurm_rl.trainers.common.metrics_log import MetricsLogger
from slurm_rl.trainers.supervised.objective import (
    AddReference,
    Example,
    MicroBatches,
    Objective,
    deal,
    micro_batches_of,
)
from slurm_rl.trainers.supervised.state import LoopState, PolicySaver


class SupervisedLoop:
    """Supervised training loop; all components are injected.

    Args:
        metrics: on rank 0 only.
        budget: tokens of a micro-batch.
        add_reference: computes reference logprobs in each step; None if they are not needed or cached.
    """

    def __init__(
        self,
        config: RunConfig,
        run: RunDir,
        objective: Objective,
        engine: PolicyEngine,
        saver: PolicySaver,
        metrics: MetricsLogger | None,
        stop: StopFlag,
        budget: int,
        add_reference: AddReference | None = None,
    ) -> None:
        self.config, self.run_dir, self.objective, self.engine = config, run, objective, engine
        self.saver, self.metrics, self.stop, self.budget = saver, metrics, stop, budget
        self.add_reference = add_reference
        self.order = PromptOrder(len(objective.train), config.seed)
        self.num_steps = count_steps(config.supervised, len(objective.train))
        self.state = LoopState()
        self.cadence = open_cadence(run, config)

    def run(self) -> LoopState:
        """Train to the end, or save and raise StopRequested at a stop signal."""
        restored = self.saver.restore()
        self.state = restored or self.state
        self.cadence.resume(self.state.step)
        if self.metrics:
            self.metrics.rewind(self.state.step if restored else -1, self.state.num_metric_rows)
            self.metrics.steps.mark()
        self.evaluate_if_due()
        self.save_if_due()
        while self.state.step < self.num_steps and not self.is_stalled():
            self.leave_if_asked()
            self.train_step()
            self.evaluate_if_due()
            self.save_if_due()
        self.save()
        return self.state

    def train_step(self) -> None:
        """Take one optimizer step and log its metrics."""
        timer = Timer()
        with timer.phase("step"), timer.phase("train"):
            size = self.config.supervised.batch_size
            rows = self.order.take(self.state.step * size, size)
            examples = [self.prepare(row) for row in rows]
            batches = self.share_of(examples)
            lr = schedule_lr(self.config.optim, self.state.step, self.num_steps)
            totals = self.engine.train(batches, self.objective.build_loss(examples), lr)
            self.state.step += 1
        task = self.config.task
        policy = {f"policy/{name}": totals.pop(name) for name in ("loss", "grad_norm")}
        num_tokens = sum(example.num_tokens for example in examples)
        values = {
            **policy,
            "policy/lr": lr,
            "policy/packed": float(self.engine.rows.packed),
            **{f"{task}/{name}": value for name, value in totals.items()},
            "data/epoch": self.state.step * size / len(self.objective.train),
            "tokens/trained": float(sum(example.num_trained for example in examples)),
            "tokens/computed": float(num_tokens),
        }
        self.write_row(
            task, {**values, **timer.seconds, "time/tokens_per_s": num_tokens / timer.seconds["time/step_s"]}
        )

    def prepare(self, row: int) -> Example:
        """Return the example of a row, with the noise seed of this step for NEFTune."""
        example = self.objective.train[row]
        if self.config.task != "sft" or self.config.sft.neftune_alpha == 0:
            return example
        seed = derive_seed(self.config.seed, "noise", self.state.step, row)
        return Example(tuple(replace(sequence, noise_seed=seed) for sequence in example.sequences))

    def share_of(self, examples: Sequence[Example]) -> MicroBatches:
        """Return this rank's micro-batches."""
        meshes = self.engine.meshes
        shares = deal(examples, meshes.dims.num_data, self.budget, packed=self.engine.rows.packed)
        batches = micro_batches_of(examples, shares[meshes.data_rank])
        return self.add_reference(batches) if self.add_reference else batches

    def evaluate_if_due(self) -> None:
        """Evaluate before the first step, after the last, and every `eval.interval` steps."""
        step, every = self.state.step, self.config.eval.interval
        due = step in (0, self.num_steps) or (every and step % every == 0)
        if not due or self.state.evaluated_step == step or not self.objective.held_out:
            return
        timer = Timer()
        with timer.phase("eval"):
            examples = self.objective.held_out
            found = self.engine.evaluate(self.share_of(examples), self.objective.build_eval_loss(examples))
        self.note(found)
        self.write_row("eval", {f"eval/{name}": value for name, value in found.items()} | timer.seconds)
        self.event("eval/done", step=step, **found)

    def note(self, found: dict[str, float]) -> None:
        """Update the best evaluation and the number of evaluations without improvement."""
        state = self.state
        state.evaluated_step = state.step
        if not self.config.eval.interval:
            return
        if state.best_loss is None or found["loss"] < state.best_loss:
            state.best_loss, state.num_worse = found["loss"], 0
            state.best_step = state.step if self.config.checkpoint.keep_best else -1
        else:
            state.num_worse += 1

    def is_stalled(self) -> bool:
        """Return whether `patience` evaluations in a row did not improve."""
        patience = self.config.supervised.patience
        return patience is not None and self.state.num_worse >= patience

    def save_if_due(self) -> None:
        due = self.cadence.is_due(self.state.step)
        if not self.cadence.is_fixed:
            # Clocks differ; either all ranks save or none.
            due = distributed.call_on_rank_0(lambda: due)
        if due or self.state.best_step == self.state.step:
            self.save()

    def save(self) -> None:
        """Save a checkpoint of this step unless it exists."""
        self.saver.save(self.state)
        if self.metrics:
            self.metrics.steps.add(self.state.step, SAVE)
            self.cadence.saved(self.state.step, self.metrics.steps)

    def leave_if_asked(self) -> None:
        """Save and raise StopRequested on all ranks once one of them got a stop signal."""
        error: Exception | None = None
        try:
            self.stop.check()
        except StopRequested as stopped:
            error = stopped
        try:
            distributed.raise_anywhere(error)
        except StopRequested:
            self.save()
            raise

    def write_row(self, stage: str, values: dict[str, float]) -> None:
        if self.metrics:
            self.metrics.log(self.state.step, stage, values)
        self.state.num_metric_rows += 1

    def event(self, kind: str, **fields: object) -> None:
        if distributed.get_rank() == 0:
            append_event(self.run_dir, kind, **fields)
