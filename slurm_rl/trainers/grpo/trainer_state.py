"""State and checkpoints of a GRPO run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_rl.models.checkpoint.step_saver import StepSaver, parse_state
from slurm_rl.run_dir.run_dir import RunDir, append_event
from slurm_rl.run_dir.save_times import END_S, lead_in_force, read_learned
from slurm_rl.trainers.grpo.rollout_files import load_rollouts, save_rollouts

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig
    from slurm_rl.data.groups import Group
    from slurm_rl.rollout.turn_log import TurnLog
    from slurm_rl.workers.critic import Critic
    from slurm_rl.workers.train_workers import WorkerGroup


@dataclass
class TrainerState:
    """State of a run outside of the models, as JSON. Data order and sampling follow from `step` and the seed."""

    step: int = 0
    """Steps done: warm-up steps, then GRPO steps."""
    stage: str = "warmup"
    """Which optimizer the policy holds: `warmup` or `grpo`."""
    evaluated_step: int = -1
    """Step of the newest evaluation."""
    best_step: int = -1
    """Step of the best sampled accuracy so far; -1 before an evaluation, and always without eval.interval."""
    best_accuracy: float = -1.0
    kl_coefficient: float | None = None
    """Adapted algorithm.kl.coef; None without a target."""
    solve_rates: dict[str, list[float]] = field(default_factory=dict)
    """Sum and number of scores by sampled row; only with data.curriculum."""
    num_metric_rows: int = 0
    """Length of metrics.jsonl; later rows belong to lost steps."""


class RunSaver(StepSaver):
    """Saves and restores policy and state together.

    Args:
        stopped_s: returns the seconds since the stop signal; None without one.
    """

    def __init__(
        self,
        run: RunDir,
        config: RunConfig,
        policy: WorkerGroup,
        critic: Critic | None = None,
        *,
        stopped_s: Callable[[], float | None] = lambda: None,
        journal: TurnLog | None = None,
    ) -> None:
        self.config, self.policy, self.critic, self.journal = config, policy, critic, journal
        self.stopped_s = stopped_s
        self._whole = 0
        self.restored: Path | None = None
        saving = config.checkpoint
        super().__init__(
            run,
            saving.keep_last,
            background=saving.background,
            timeout_s=config.trainer.step_timeout_s,
            url=saving.upload_url,
            verify=saving.verify,
            left_s=self._left_s,
            # One process would need minutes for the terabytes of a large model.
            hash_files=lambda files: policy.deal("hash_files", files),
        )

    def settle_s(self) -> float:
        """Return the seconds that batches in flight may take after a stop, so that the save still fits."""
        learned = read_learned(self.run_dir)
        return max(0.0, learned.settle_s(lead_s(self.run_dir, self.config)) - (self.stopped_s() or 0.0))

    def _left_s(self) -> float | None:
        stopped_s = self.stopped_s()
        return None if stopped_s is None else lead_s(self.run_dir, self.config) - END_S - stopped_s

    def restore(self) -> tuple[TrainerState, dict[int, list[Group]]] | None:
        """Load the newest valid checkpoint; return state and batches in flight, or None."""
        newest = self.newest()
        if self.journal is not None:
            self.journal.resume(*(0, None) if newest is None else (newest.step, newest.path))
        if newest is None:
            return None
        self._whole = newest.step
        state = parse_state(TrainerState, newest.meta)
        if state.stage == "grpo" and self.config.warmup.num_steps:
            self.policy.call("use_optimizer", self.config.optim)
        self.policy.call("load", newest.path / "policy")
        self.restored = newest.path
        append_event(self.run_dir, "trainer/resumed", step=state.step)
        return state, load_rollouts(newest.path)

    def restore_critic(self) -> None:
        """Load the critic of that checkpoint; a checkpoint of the warm-up has none."""
        folder = None if self.restored is None else self.restored / "critic"
        if self.critic is not None and folder is not None and folder.is_dir():
            self.critic.workers.call("load", folder)

    def save(self, state: TrainerState, rollouts: dict[int, list[Group]]) -> None:
        """Write a checkpoint of this step unless it exists; see `StepSaver.saving`."""
        if state.step == self.saved_step:
            self.wait()
            self._whole = state.step
            return
        models = {"policy": self.policy}
        if self.critic is not None and self.critic.is_built:
            models["critic"] = self.critic.workers
        before = max(self.saved_step, 0)
        with self.saving(state.step, asdict(state), spare={state.best_step}) as (folder, files):
            for name, workers in models.items():
                (folder / name).mkdir()
                for pending in workers.call("save", folder / name, self.config.checkpoint.background):
                    files += pending
            save_rollouts(folder, rollouts)
            if self.journal is not None:
                self.journal.save(folder, state.step)
        self._whole = before if self.background else state.step

    def tidy(self, step: int) -> None:
        """Remove logged turns that no resumed run needs; `step` is the next step."""
        if self.journal is not None:
            self.journal.prune(step, self._whole)


def lead_s(run: RunDir, config: RunConfig) -> int:
    """Return the seconds between stop signal and time limit."""
    return lead_in_force(run, config.job.planned_lead_s, learns=config.job.checkpoint_lead_s == "auto")
