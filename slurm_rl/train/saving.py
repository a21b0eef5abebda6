"""When checkpoints are written, read and removed, whatever they hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from slurm_rl.errors import CheckpointError
from slurm_rl.run_dir import RunDir, append_event
from slurm_rl.train.engine.checkpoint import Checkpoint, CheckpointStore

State = TypeVar("State")


class StepSaver:
    """The checkpoints of one run, as the one process that writes them sees them."""

    def __init__(self, run: RunDir, keep: int) -> None:
        self.run_dir, self.keep = run, keep
        self.store = CheckpointStore(run.checkpoints)
        self.saved_step = -1
        self.started = 0.0

    def newest(self) -> Checkpoint | None:
        """The newest that verifies; what was passed over is an event."""
        newest = self.store.latest()
        for reason in self.store.skipped:
            append_event(self.run_dir, "checkpoint/skipped", reason=reason)
        if newest is not None:
            self.saved_step = newest.step
        return newest

    def save(self, step: int, meta: dict[str, Any], write: Callable[[Path], None], spare: Collection[int] = ()) -> None:
        """Write a checkpoint of this step unless there is one; older ones go after it verifies.

        Args:
            write: fills the folder it is given.
            spare: steps whose checkpoints stay.
        """
        if step != self.saved_step:
            write(self.begin(step))
            self.finish(step, meta, spare)

    def begin(self, step: int) -> Path:
        """The empty folder of a checkpoint to be; without `finish` it never counts."""
        self.started = time.perf_counter()
        return self.store.begin(step)

    def finish(self, step: int, meta: dict[str, Any], spare: Collection[int] = ()) -> None:
        """Make it the newest, now that everything is in it."""
        self.store.commit(step, meta)
        self.saved_step = step
        self.store.prune(self.keep, spare=spare)
        seconds = round(time.perf_counter() - self.started, 3)
        append_event(self.run_dir, "checkpoint/saved", step=step, seconds=seconds)


def parse_state(kind: type[State], meta: dict[str, Any]) -> State:
    """The dataclass whose fields a checkpoint's meta holds.

    Raises:
        CheckpointError: it was written by another version.
    """
    try:
        return kind(**meta)
    except TypeError as error:
        raise CheckpointError(
            f"a checkpoint must hold the state this version of slurm_rl writes ({error})",
            action="resume with the code snapshot of the run, or start a new run with model.init_from",
        ) from None
