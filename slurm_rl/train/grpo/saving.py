"""What a checkpoint of a GRPO run holds, and when it is written and read."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from slurm_rl.config.run import RunConfig
from slurm_rl.errors import CheckpointError
from slurm_rl.run_dir import RunDir, append_event
from slurm_rl.train.engine.background import wait_for_files
from slurm_rl.train.engine.checkpoint import CheckpointStore
from slurm_rl.train.grpo.pipeline import load_rollouts, save_rollouts
from slurm_rl.train.grpo.policy_group import PolicyGroup
from slurm_rl.train.grpo.types import Group


@dataclass
class RunState:
    """The part of a run's state that is not in the policy. Small and JSON.

    Data position, sampling and data order all follow from `step` and the seed (see seeds.py), so there
    is no random state to save.
    """

    step: int = 0
    """Optimizer stages done: warm-up steps, then GRPO steps."""
    stage: str = "warmup"
    """Which optimizer the policy holds: `warmup` or `grpo`."""
    evaluated_step: int = -1
    """Step of the newest evaluation."""
    accuracy_before: dict[str, float] | None = None
    accuracy_after: dict[str, float] | None = None
    best_step: int = -1
    """Step of the best sampled accuracy so far; -1 before an evaluation, and always without eval.every."""
    best_accuracy: float = -1.0
    num_metric_rows: int = 0
    """Length of metrics.jsonl; rows after it belong to steps that a crash took."""


class RunSaver:
    """Saves and restores policy and state together."""

    def __init__(self, run: RunDir, config: RunConfig, policy: PolicyGroup) -> None:
        self.run_dir, self.config, self.policy = run, config, policy
        self.store = CheckpointStore(run.checkpoints)
        self.saved_step = -1
        self._given_up = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._pending: Future[None] | None = None

    def restore(self) -> tuple[RunState, dict[int, list[Group]]] | None:
        """Load the newest checkpoint that verifies: state, and batches under way; None when there is none."""
        newest = self.store.latest()
        for reason in self.store.skipped:
            append_event(self.run_dir, "checkpoint/skipped", reason=reason)
        if newest is None:
            return None
        state = _parse_state(newest.meta)
        if state.stage == "grpo" and self.config.warmup.num_steps:
            self.policy.use_optimizer(self.config.optim)
        self.policy.load(newest.path / "policy")
        self.saved_step = state.step
        append_event(self.run_dir, "trainer/resumed", step=state.step)
        return state, load_rollouts(newest.path)

    def save(self, state: RunState, rollouts: dict[int, list[Group]]) -> None:
        """Write a checkpoint of this step unless there is one; older ones go after it verifies.

        With checkpoint.background it is copied when this returns, and has its name later: see `wait`.

        Raises:
            CheckpointError: this one, or the one before it, could not be written.
        """
        self.wait()
        if state.step == self.saved_step:
            return
        start, background = time.perf_counter(), self.config.checkpoint.background
        folder = self.store.begin(state.step)
        (folder / "policy").mkdir()
        files = self.policy.save(folder / "policy", background=background)
        save_rollouts(folder, rollouts)
        self.saved_step = state.step
        # The state changes with the next step; what is saved must not.
        self._pending = self._thread.submit(self._finish, replace(state), files, start)
        if not background:
            self.wait()

    def _finish(self, state: RunState, files: Sequence[Path], start: float) -> None:
        wait_for_files(files, self.config.trainer.step_timeout_s, self._given_up)
        self.store.commit(state.step, asdict(state))
        self.store.prune(self.config.checkpoint.keep, spare={state.best_step})
        append_event(self.run_dir, "checkpoint/saved", step=state.step, seconds=round(time.perf_counter() - start, 3))

    def check(self) -> None:
        """Raise what went wrong in the background, if anything did by now."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Return when the newest checkpoint is whole on disk.

        Raises:
            CheckpointError: it could not be written; older ones are untouched.
        """
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def close(self, within_s: float) -> None:
        """Give a checkpoint under way so long to end; never raises, for a run that ends anyway."""
        if self._pending is not None:
            wait_for_futures([self._pending], within_s)
        self._given_up.set()
        self._thread.shutdown(wait=False)


def _parse_state(meta: dict[str, Any]) -> RunState:
    try:
        return RunState(**meta)
    except TypeError as error:
        raise CheckpointError(
            f"a checkpoint must hold the state this version of slurm_rl writes ({error})",
            action="resume with the code snapshot of the run, or start a new run with model.init_from",
        ) from None
