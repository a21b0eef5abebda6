"""Files written in a thread beside the training, each whole or not there. Standard library only.

    writer:  rank-0.pt.part --fsync, rename--> rank-0.pt            or rank-0.pt.error with the reason
    waiter:  polls for one of the two, with a deadline

The waiter may be another process on another node: files are all that the two share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_rl.errors import CheckpointError
from slurm_rl.train.engine.folders import fsync_file

_POLL_S = 0.02


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write` with a path beside `path`, which appears when its bytes are on disk.

    Raises:
        OSError, RuntimeError: of `write`; torch reports a full disk as a RuntimeError.
    """
    part = path.with_name(path.name + ".part")
    try:
        write(part)
        fsync_file(part)
    except BaseException:
        part.unlink(missing_ok=True)  # on a full disk it holds the room that the reason needs
        raise
    part.rename(path)


class BackgroundWriter:
    """One file at a time, in a thread."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def start(self, path: Path, write: Callable[[Path], None]) -> None:
        """Begin to write; the former file must be there first."""
        self.join()
        self._thread = threading.Thread(target=_write_or_say_why, args=(path, write), name=f"write {path.name}")
        self._thread.start()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def _write_or_say_why(path: Path, write: Callable[[Path], None]) -> None:
    try:
        write_whole(path, write)
    except Exception as error:  # nobody catches in a thread: the waiter reads it
        reason = path.with_name(path.name + ".error")
        beside = reason.with_name(reason.name + ".part")
        beside.write_text(str(error), encoding="utf-8")
        beside.rename(reason)  # who sees it finds it whole


def wait_for_files(paths: Sequence[Path], timeout_s: float, given_up: threading.Event) -> None:
    """Return when all are there.

    Raises:
        CheckpointError: a writer failed, none came within `timeout_s`, or `given_up` was set.
    """
    deadline = time.monotonic() + timeout_s
    for path in paths:
        reason = path.with_name(path.name + ".error")
        while not path.exists():
            if reason.exists():
                raise CheckpointError(
                    f"the policy must be able to write its checkpoint ({reason.read_text(encoding='utf-8')})",
                    seen=str(path),
                    action="make room on that file system; the previous checkpoint is untouched",
                )
            if given_up.is_set() or time.monotonic() > deadline:
                raise CheckpointError(
                    f"the policy must write its checkpoint within {timeout_s:g} s",
                    seen=f"no {path}",
                    action="look for a worker that died, or raise trainer.step_timeout_s",
                )
            given_up.wait(_POLL_S)
