"""Files written atomically in a background thread during training. Standard library only.

    writer:  rank-0.pt.part --fsync, rename--> rank-0.pt            or rank-0.pt.error with the reason
    waiter:  polls for one of the two, with a deadline

A file of a rank has its hash beside it, rank-0.pt.sum, so that the process that commits need not read it again.

The waiter may be on another node: the two share only files. The error file is reserved before writing, because a full
disk cannot take a new one; reporting an error is only a rename.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from slurm_rl.errors import CheckpointError
from slurm_rl.run_dir.io_errors import (
    annotate_path,
    describe_disk,
    fsync_path,
    io_error_code,
    log_to_stderr,
    next_action,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_POLL_S = 0.02
# A waiter asks the file system itself so often: its writer may have had no way to tell.
_ASK_S = 5.0
_REASON_BYTES = 1000


class _File(io.BufferedWriter):
    """File that keeps its first error; torch only reports `unexpected pos 640 vs 598`. It hashes its bytes."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self.error: OSError | None = None
        self.hash = hashlib.sha256()
        self.num_bytes = 0

    def write(self, content: Buffer, /) -> int:
        try:
            written = super().write(content)
        except OSError as error:
            self.error = self.error or error
            raise
        self.hash.update(content)
        self.num_bytes += written
        return written


Write: TypeAlias = Callable[[BinaryIO], object]


def sum_file(path: Path) -> Path:
    """Return the file with the SHA-256 of `path`, in hexadecimal."""
    return path.with_name(path.name + ".sum")


def write_whole(path: Path, write: Write, finish: Callable[[], None] = lambda: None, *, with_sum: bool = False) -> None:
    """Call `write` with a temporary file; `path` appears when its bytes are on disk. OSErrors name the path.

    Args:
        finish: called when the bytes are on disk, before the file gets its name.
        with_sum: also write `sum_file(path)`, unless `write` has gone back in the file.
    """
    part = path.with_name(path.name + ".part")
    with annotate_path(path):
        try:
            with _File(part) as file:
                try:
                    write(file)
                except RuntimeError:
                    if file.error is not None:
                        raise file.error from None
                    raise
            fsync_path(part)
            if with_sum and file.num_bytes == part.stat().st_size:
                sum_file(path).write_text(file.hash.hexdigest())
            finish()
            part.rename(path)
        except BaseException:
            # The room that it holds on a full disk is needed.
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
                sum_file(path).unlink(missing_ok=True)
            raise


def reserve_reason(path: Path) -> None:
    """Write the error file in advance; raise OSError if the disk has no room for it."""
    reserved = _reserved(path)
    reserved.write_bytes(b" " * _REASON_BYTES)
    fsync_path(reserved)


def write_or_report(path: Path, write: Write) -> None:
    """Write a file, or rename its reserved error file after writing the reason; called in a thread, never raises."""
    reserved = _reserved(path)
    try:
        # The reserve is no part of the checkpoint, which may be whole with the rename that follows.
        write_whole(path, write, reserved.unlink, with_sum=True)
    except Exception as error:  # no handler catches it in a thread: the waiter reads the file
        try:
            if not reserved.exists():
                reserve_reason(path)
            with contextlib.suppress(OSError), reserved.open("r+b") as file:
                file.write(f"{type(error).__name__}: {error}".encode()[:_REASON_BYTES])
            reserved.rename(_reason(path))  # readers find a complete file
        except OSError as second:
            # The file system is unavailable: the waiter has a deadline and checks for stop signals.
            log_to_stderr(f"{path} was not written ({error}), which could not be reported ({second})")


def _reason(path: Path) -> Path:
    return path.with_name(path.name + ".error")


def _reserved(path: Path) -> Path:
    return path.with_name(path.name + ".error.part")


def _ask(folder: Path) -> str:
    """Return the file system's error for a small write; "" if it succeeds."""
    asking = folder / f".asked-{secrets.token_hex(4)}"
    try:
        asking.write_bytes(b" ")
        fsync_path(asking)
    except OSError as error:
        return f"{type(error).__name__}: {error}" if io_error_code(error) is not None else ""
    finally:
        with contextlib.suppress(OSError):
            asking.unlink(missing_ok=True)
    return ""


def wait_for_files(paths: Sequence[Path], timeout_s: float, given_up: threading.Event) -> None:
    """Return when all files exist.

    Raises:
        CheckpointError: a writer failed, `timeout_s` passed, or `given_up` was set.
    """
    start = time.monotonic()
    asked_at = start
    for path in paths:
        reason = _reason(path)
        while not path.exists():
            now = time.monotonic()
            text = ""
            if reason.exists():
                text = reason.read_text(encoding="utf-8", errors="replace").strip() or _ask(path.parent) or "no reason"
            elif now > asked_at + _ASK_S:
                # A file system that takes nothing any more takes no reason either.
                asked_at, text = now, _ask(path.parent)
            if text:
                raise CheckpointError(
                    f"the policy must be able to write its checkpoint ({text})",
                    seen=f"{path}, where {describe_disk(path.parent)}",
                    action=f"{next_action(text)}; the previous checkpoint is untouched",
                )
            if given_up.is_set() or now > start + timeout_s:
                raise CheckpointError(
                    f"the policy must write its checkpoint within {timeout_s:g} s"
                    + (", or before the run stops" if given_up.is_set() else ""),
                    seen=f"no {path}",
                    action="look for a worker that died, or raise trainer.step_timeout_s",
                )
            given_up.wait(_POLL_S)
