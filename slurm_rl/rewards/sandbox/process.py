"""Starts the sandboxed interpreter and watches it: bounded time, bounded output, nothing left behind."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from slurm_rl.errors import RewardError

_ROOT = Path(__file__).resolve().parents[3]
_BOOT = (
    f"import sys; sys.path.insert(0, {str(_ROOT)!r}); "
    "from slurm_rl.rewards.sandbox.inside.main import main; sys.path.pop(0); main()"
)
_PYTHON = (sys.executable, "-S", "-s", "-P", "-B", "-X", "int_max_str_digits=0", "-c", _BOOT)
_SHOWN_BYTES = 2000
USE_LANDLOCK = True
"""Where the kernel has it; a test switches it off, for kernels without."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    wall_s: float
    memory_bytes: int
    output_bytes: int


class Sandboxed:
    """One sandboxed interpreter; a context manager that kills it.

    Args:
        job: mode and material, see `inside.main`.
        fds: name in the job to a descriptor that the process inherits.
        stdin, stdout: as for Popen.
    """

    def __init__(
        self,
        job: dict[str, Any],
        limits: Limits,
        *,
        fds: dict[str, int] | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.DEVNULL,
    ) -> None:
        self._job, self._limits, self._fds = job, limits, fds or {}
        self._stdin, self._stdout = stdin, stdout

    def __enter__(self) -> Sandboxed:
        self._outer = tempfile.TemporaryDirectory(prefix="slurm-rl-code-", ignore_cleanup_errors=True)
        self._home = Path(self._outer.name) / "home"
        self._home.mkdir()
        self._status, status = os.pipe()
        job_fd = self._write_job(status)
        try:
            self.process = subprocess.Popen(
                [*_PYTHON, str(job_fd)],
                stdin=self._stdin,
                stdout=self._stdout,
                stderr=subprocess.PIPE,
                cwd=self._home,
                env=self._environment(),
                pass_fds=(job_fd, status, *self._fds.values()),
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            os.close(self._status)
            self._outer.cleanup()
            raise
        finally:
            os.close(status)
            os.close(job_fd)
        return self

    def _write_job(self, status: int) -> int:
        limits = {
            "cpu_s": int(self._limits.wall_s) + 1,
            "memory_bytes": self._limits.memory_bytes,
            "file_bytes": self._limits.output_bytes,
            "landlock": USE_LANDLOCK,
        }
        job = {**self._job, **self._fds, "status": status, "parent": os.getpid(), "limits": limits}
        fd = os.memfd_create("job")
        with open(fd, "w", encoding="utf-8", closefd=False) as file:
            json.dump(job, file)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def _environment(self) -> dict[str, str]:
        home = str(self._home)
        # A Python of `module load` may need it to start at all.
        libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        # The fixed hash seed lets a resumed run see the same verdicts.
        fixed = {"HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
        return {**libraries, **fixed}

    def wait_confined(self, give_up: float) -> dict[str, str]:
        """Return the process's report of its confinement, sent before any untrusted code ran.

        Raises:
            RewardError: it could not be confined, or not before `give_up` (monotonic clock).
        """
        started, told = time.monotonic(), Reader(_SHOWN_BYTES)
        if not watch({self._status: told}, give_up):
            raise RewardError(
                "the sandbox must start before the timeout of a completion",
                seen=f"nothing after {time.monotonic() - started:.1f} s",
                action="raise reward.timeout_s, or lower reward.num_workers to the CPUs of the node",
            )
        try:
            words: dict[str, str] = json.loads(bytes(told.data))
        except ValueError:
            self.process.wait()  # it has closed its end, so it is on its way out
            said = os.read(self.stderr, _SHOWN_BYTES).decode(errors="replace").strip()
            raise RewardError(
                "code must be confined before it runs",
                seen=said.splitlines()[-1] if said else f"exit code {self.process.returncode} and no word",
                action=(
                    "remove `code` from reward.verifiers, or use nodes with Landlock (Linux 5.13) or user namespaces"
                ),
            ) from None
        return words

    @property
    def stdout(self) -> int:
        """Descriptor to read from; only with stdout=PIPE."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    @property
    def stderr(self) -> int:
        assert self.process.stderr is not None
        return self.process.stderr.fileno()

    def wait_end(self, give_up: float) -> int | None:
        """Return the exit code, negative for a signal; None when it still runs at `give_up`."""
        try:
            return self.process.wait(timeout=max(0.0, give_up - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            if self.process.returncode is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        os.close(self._status)
        self._outer.cleanup()


@dataclass
class Reader:
    """Collects the output of a descriptor; bytes beyond `limit` are discarded."""

    limit: int
    stops: bool = False
    awaited: bool = True
    data: bytearray = field(default_factory=bytearray)
    overflowed: bool = False

    def take(self, chunk: bytes) -> None:
        room = self.limit - len(self.data)
        self.data += chunk[:room]
        self.overflowed = self.overflowed or len(chunk) > room


def watch(readers: Mapping[int, Reader], give_up: float, writer: IO[bytes] | None = None, text: bytes = b"") -> bool:
    """Drain `readers` (by descriptor) until all awaited ones have ended, and write `text` to `writer`, then close it.

    Returns:
        False at the deadline `give_up` (monotonic clock), or if a reader with `stops` exceeded its limit.
    """
    awaited = {fd for fd, reader in readers.items() if reader.awaited}
    left = memoryview(text)
    with selectors.DefaultSelector() as selector:
        for fd in readers:
            os.set_blocking(fd, False)
            selector.register(fd, selectors.EVENT_READ)
        if writer is not None:
            os.set_blocking(writer.fileno(), False)
            selector.register(writer, selectors.EVENT_WRITE)
        while awaited:
            if time.monotonic() >= give_up:
                return False
            for key, _ in selector.select(max(0.0, give_up - time.monotonic())):
                if writer is not None and key.fileobj is writer:
                    left = _feed(writer.fileno(), left)
                    if not left:
                        selector.unregister(writer)
                        writer.close()
                    continue
                reader = readers[key.fd]
                if _drain(key.fd, reader):
                    selector.unregister(key.fd)
                    awaited.discard(key.fd)
                if reader.stops and reader.overflowed:
                    return False
    return True


def _drain(fd: int, reader: Reader) -> bool:
    """Take one chunk; True at the end."""
    try:
        chunk = os.read(fd, 1 << 16)
    except BlockingIOError:
        return False
    reader.take(chunk)
    return not chunk


def _feed(fd: int, left: memoryview) -> memoryview:
    """Write as much as fits and return the rest; empty if the reader has closed."""
    try:
        return left[os.write(fd, left) :] if left else left
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[:0]
