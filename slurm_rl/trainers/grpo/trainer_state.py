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
    """The part of a run's state that is not in the policy. Small and JSON.

    Data position, sampling and data order all follow from `step` and the seed (see algorithms/schedule.py), so there
    is no random state to save.
    """

    step: int = 0
    """Optimizer stages done: warm-up steps, then GRPO steps."""
    stage: str = "warmup"
    """Which optimizer the policy holds: `warmup` or `grpo`."""
    evaluated_step: int = -1
    """Step of the newest evaluation."""
    best_step: int = -1
    """Step of the best sampled accuracy so far; -1 before an evaluation, and always without eval.interval."""
    best_accuracy: float = -1.0
    kl_coefficient: float | None = None
    """What the controller has made of algorithm.kl.coef; None without a target."""
    solve_rates: dict[str, list[float]] = field(default_factory=dict)
    """Of each row that was sampled the sum of its scores and their number; with data.curriculum alone."""
    num_metric_rows: int = 0
    """Length of metrics.jsonl; rows after it belong to steps that a crash took."""


class RunSaver(StepSaver):
    """Saves and restores policy and state together.

    Args:
        stopped_s: seconds since the run was asked to leave; None: it was not.
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
        )

    def settle_s(self) -> float:
        """Seconds that batches in flight have from now on, after a stop, so that the measured save fits behind them."""
        learned = read_learned(self.run_dir)
        return max(0.0, learned.settle_s(lead_s(self.run_dir, self.config)) - (self.stopped_s() or 0.0))

    def _left_s(self) -> float | None:
        stopped_s = self.stopped_s()
        return None if stopped_s is None else lead_s(self.run_dir, self.config) - END_S - stopped_s

    def restore(self) -> tuple[TrainerState, dict[int, list[Group]]] | None:
        """Load the newest checkpoint that verifies: state, and batches in flight; None when there is none."""
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
        """Load the critic of that checkpoint, once there is a critic; one of the warm-up has none."""
        folder = None if self.restored is None else self.restored / "critic"
        if self.critic is not None and folder is not None and folder.is_dir():
            self.critic.workers.call("load", folder)

    def save_run(self, state: TrainerState, rollouts: dict[int, list[Group]]) -> None:
        """Write a checkpoint of this step unless there is one; see `StepSaver.save`."""
        models = {"policy": self.policy}
        if self.critic is not None and self.critic.is_built:
            models["critic"] = self.critic.workers

        def write(folder: Path) -> list[Path]:
            pending: list[list[Path]] = []
            for name, workers in models.items():
                (folder / name).mkdir()
                pending += workers.call("save", folder / name, self.config.checkpoint.background)
            save_rollouts(folder, rollouts)
            if self.journal is not None:
                self.journal.save(folder, state.step)
            return [path for paths in pending for path in paths]

        before = max(self.saved_step, 0)
        self.save(state.step, asdict(state), write, spare={state.best_step})
        self._whole = before if self.background else state.step

    def tidy(self, step: int) -> None:
        """Remove what the journal has of batches that no resumed run would go on with; `step` is to come."""
        if self.journal is not None:
            self.journal.prune(step, self._whole)


def lead_s(run: RunDir, config: RunConfig) -> int:
    """Seconds from a stop signal to the limit, as the controller has it now."""
    return lead_in_force(run, config.job.planned_lead_s, learns=config.job.checkpoint_lead_s == "auto")
