"""Evaluation in the loop, on held-out prompts and evaluation sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from slurm_rl.config.run import RunConfig
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.node.stop import Timer
from slurm_rl.rollout.sampling import Rollouts, build_spec
from slurm_rl.rollout.weights.sync import WeightSync
from slurm_rl.run_dir.run_dir import RunDir, append_event
from slurm_rl.trainers.grpo.step_metrics import accuracy, count_failed, pass_metrics, source_accuracy
from slurm_rl.trainers.grpo.trainer_state import TrainerState

if TYPE_CHECKING:
    from slurm_rl.trainers.grpo.eval_sets import EvalSet


class Evaluator:
    """Measures the policy on prompts outside of training.

    Args:
        write_row: writes a row of metrics.jsonl.
    """

    def __init__(
        self,
        config: RunConfig,
        run: RunDir,
        held_out: Sequence[EncodedPrompt],
        rollouts: Rollouts,
        sync: WeightSync,
        write_row: Callable[[str, dict[str, float]], None],
        sets: Sequence[EvalSet] = (),
    ) -> None:
        self.config, self.run_dir, self.held_out, self.sets = config, run, held_out, sets
        self.rollouts, self.sync, self.write_row = rollouts, sync, write_row

    def run_if_due(self, state: TrainerState) -> None:
        """Evaluate before the first step, after the last, and every `eval.interval` steps."""
        done, every = state.step - self.config.warmup.num_steps, self.config.eval.interval
        due = done in (0, self.config.trainer.num_steps) or (every and done % every == 0)
        if not due or state.evaluated_step == state.step or not (self.held_out or self.sets):
            return
        found = self.evaluate(state.step)
        state.evaluated_step = state.step
        if every and self.config.checkpoint.keep_best and found.get("sampled", -1.0) > state.best_accuracy:
            state.best_step, state.best_accuracy = state.step, found["sampled"]

    def evaluate(self, step: int) -> dict[str, float]:
        """Measure and log the accuracy, sampled and greedy, with pass@k and all sets."""
        found: dict[str, float] = {}
        passed: dict[str, float] = {}
        num_failed = 0
        timer = Timer()
        self.sync.verify()  # asynchronous engines might still have older weights
        with timer.phase("eval"):
            ways = ("sampled", "greedy") if self.config.eval.greedy else ("sampled",)
            for name in ways if self.held_out else ():
                count = self.config.eval.num_samples if name == "sampled" else 1
                spec = build_spec(self.config, f"eval-{name}", step, count, greedy=name == "greedy")
                groups = self.rollouts.sample(self.held_out, spec)
                if (value := accuracy(groups)) is not None:
                    found[name] = value
                num_failed += count_failed(groups)
                passed |= pass_metrics(groups) | source_accuracy(groups, name)
            for one in self.sets:
                passed |= one.measure(step)
        if num_failed:
            passed["accuracy/failed"] = float(num_failed)
        self.write_row("eval", {f"accuracy/{k}": v for k, v in found.items()} | passed | timer.seconds)
        append_event(self.run_dir, "eval/done", step=step, **found, **({"failed": num_failed} if num_failed else {}))
        return found
