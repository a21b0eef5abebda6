"""When checkpoints are written, read and removed, whatever they hold."""

import functools
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from slurm_rl.errors import CheckpointError
from slurm_rl.models.checkpoint.background import wait_for_files
from slurm_rl.models.checkpoint.store import Checkpoint, CheckpointStore, HashFiles, cannot_write
from slurm_rl.run_dir.io_errors import fsync_path
from slurm_rl.run_dir.run_dir import RunDir, append_event

State = TypeVar("State")
_POLL_S = 0.1


class StepSaver:
    """Saves and restores the checkpoints of one run, in the one process that writes them.

    Args:
        background: `saving` ends after the copy; files are finished, hashed and renamed meanwhile.
        timeout_s: deadline for these files.
        url: URL for copies; None: no copies.
        left_s: returns the seconds left for a checkpoint in progress after a stop signal; None without one.
        hash_files: see `CheckpointStore`.
    """

    def __init__(
        self,
        run: RunDir,
        keep: int,
        *,
        background: bool = False,
        timeout_s: float = 3600.0,
        url: str | None = None,
        verify: bool = True,
        left_s: Callable[[], float | None] = lambda: None,
        hash_files: HashFiles | None = None,
    ) -> None:
        from slurm_rl.models.checkpoint.remote import RemoteFolder
        from slurm_rl.models.checkpoint.remote_saver import RemoteSaver
        from slurm_rl.run_dir.run_secret import checkpoint_key

        self.run_dir, self.keep, self.background, self.timeout_s = run, keep, background, timeout_s
        self.left_s = left_s
        self.store = CheckpointStore(run.checkpoints, run.require_ours, hash_files)
        self.remote = None
        if url is not None:
            # Only one rank needs the store, and only one may create it.
            key = functools.partial(checkpoint_key, run, os.environ)
            place = f"{url}/{run.path.name}"
            folder = RemoteFolder(place, key=key, verify=verify, require_ours=run.require_ours)
            self.remote = RemoteSaver(run, self.store, folder)
        self.saved_step = -1
        self.started = 0.0
        self._given_up = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._pending: Future[None] | None = None

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint that verifies, local or copied; skipped ones are events."""
        newest = self.store.latest()
        if self.remote is not None and self.remote.fetch_newer(-1 if newest is None else newest.step):
            newest = self.store.latest()
        for reason in self.store.skipped:
            append_event(self.run_dir, "checkpoint/skipped", reason=reason)
        if newest is not None:
            self.saved_step = newest.step
            if self.remote is not None:
                self.remote.copy_if_missing(newest.step)
        return newest

    @contextmanager
    def saving(self, step: int, meta: dict[str, Any], spare: Collection[int] = ()) -> Iterator[tuple[Path, list[Path]]]:
        """Yield the folder of a new checkpoint, and a list for its files that other processes are still writing.

        The checkpoint is committed after the block, and older ones are pruned after it verifies.

        Args:
            spare: steps whose checkpoints are kept.

        Raises:
            CheckpointError: this one, or the one before it, could not be written; older ones are untouched.
        """
        began = time.perf_counter()
        self.wait()
        files: list[Path] = []
        try:
            yield self.begin(step), files
        except (OSError, CheckpointError) as error:
            self.store.discard(step)
            if isinstance(error, OSError):
                raise cannot_write(self.store.root, error) from error
            raise
        self.saved_step = step
        stall_s = time.perf_counter() - began if self.background else None
        self._pending = self._thread.submit(self.finish, step, dict(meta), frozenset(spare), files, stall_s)
        if not self.background:
            self.wait()

    def begin(self, step: int) -> Path:
        """Return the empty folder of a new checkpoint, which needs `finish` to count."""
        self.started = time.perf_counter()
        return self.store.begin(step)

    def finish(
        self,
        step: int,
        meta: dict[str, Any],
        spare: Collection[int] = (),
        files: Sequence[Path] = (),
        stall_s: float | None = None,
    ) -> None:
        """Commit the checkpoint once the files of other processes exist; `stall_s` is None if the loop waits for it."""
        try:
            wait_for_files(files, self.timeout_s, self._given_up)
            self._sync_rows()
        except CheckpointError:
            self.store.discard(step)
            raise
        self.store.commit(step, meta)
        self.saved_step = step
        self.store.prune(self.keep, spare=spare)
        seconds = round(time.perf_counter() - self.started, 3)
        stall_s = seconds if stall_s is None else round(stall_s, 3)
        append_event(self.run_dir, "checkpoint/saved", step=step, seconds=seconds, stall_s=stall_s)
        if self.remote is not None:
            self.remote.copy(step)
            self.remote.prune(self.keep, spare)

    def _sync_rows(self) -> None:
        """Sync the rows up to this checkpoint before it is committed: a resumed run keeps them."""
        for path in (self.run_dir.metrics, self.run_dir.samples, self.run_dir.events):
            try:
                if path.is_file():
                    fsync_path(path)
            except OSError as error:
                raise cannot_write(path, error) from error

    def check(self) -> None:
        """Raise the error of a background save, if there is one."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Return when the newest checkpoint is whole on disk, or raise its CheckpointError."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._wait_for(pending)
            pending.result()

    def _wait_for(self, pending: Future[None]) -> None:
        """Wait for the end, but not beyond a stop."""
        while not wait_for_futures([pending], _POLL_S).done:
            left_s = self.left_s()
            if left_s is not None and left_s <= 0:
                self._given_up.set()

    def close(self, within_s: float) -> None:
        """Wait up to `within_s` for a checkpoint in progress; never raises."""
        if self._pending is not None:
            wait_for_futures([self._pending], within_s)
        self._given_up.set()
        self._thread.shutdown(wait=False)


def parse_state(kind: type[State], meta: dict[str, Any]) -> State:
    """Return the dataclass from the metadata of a checkpoint; raise CheckpointError for another version."""
    try:
        return kind(**meta)
    except TypeError as error:
        raise CheckpointError(
            f"a checkpoint must hold the state this version of slurm_rl writes ({error})",
            action="resume with the code snapshot of the run, or start a new run with model.init_from",
        ) from None
