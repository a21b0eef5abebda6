"""Start the sandboxed interpreter: bounded time, bounded output, nothing left behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

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


def open_memory(data: bytes = b"") -> BinaryIO:
    """Return a file in memory with these bytes, at its start."""
    file = open(os.memfd_create("sandbox"), "w+b", buffering=0)  # noqa: PTH123, SIM115
    os.pwrite(file.fileno(), data, 0)
    return file


class Sandboxed:
    """One sandboxed interpreter; a context manager that kills it.

    Its standard streams are files in memory, so that the kernel's limit on the size of files bounds its output.

    Args:
        job: mode and material, see `inside.main`.
        fds: name in the job to a descriptor that the process inherits.
    """

    def __init__(
        self, job: dict[str, Any], limits: Limits, *, stdin: bytes = b"", fds: Mapping[str, int] | None = None
    ) -> None:
        self._job, self._limits, self._stdin, self._fds = job, limits, stdin, fds or {}

    def __enter__(self) -> Sandboxed:
        with ExitStack() as opened, ExitStack() as handed:
            outer = tempfile.TemporaryDirectory(prefix="slurm-rl-code-", ignore_cleanup_errors=True)
            home = Path(opened.enter_context(outer)) / "home"
            home.mkdir()
            self._status, status = os.pipe()
            opened.callback(os.close, self._status)
            handed.callback(os.close, status)
            job = handed.enter_context(open_memory(self._render_job(status)))
            self._stdout, self._stderr = (opened.enter_context(open_memory()) for _ in range(2))
            self.process = subprocess.Popen(
                [*_PYTHON, str(job.fileno())],
                stdin=handed.enter_context(open_memory(self._stdin)),
                stdout=self._stdout,
                stderr=self._stderr,
                cwd=home,
                env=_build_environment(str(home)),
                pass_fds=(job.fileno(), status, *self._fds.values()),
                start_new_session=True,
            )
            opened.callback(self._kill)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            if self.process.returncode is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _render_job(self, status: int) -> bytes:
        limits = {
            "cpu_s": int(self._limits.wall_s) + 1,
            "memory_bytes": self._limits.memory_bytes,
            "file_bytes": self._limits.output_bytes + 1,  # a byte more shows that there was more
            "landlock": USE_LANDLOCK,
        }
        return json.dumps(
            {**self._job, **self._fds, "status": status, "parent": os.getpid(), "limits": limits}
        ).encode()

    def wait_confined(self, give_up: float) -> dict[str, str]:
        """Return the process's report of its confinement, sent before any untrusted code ran.

        Raises:
            RewardError: it could not be confined, or not before `give_up` (monotonic clock).
        """
        started = time.monotonic()
        if not select.select([self._status], [], [], max(0.0, give_up - started))[0]:
            raise RewardError(
                "the sandbox must start before the timeout of a completion",
                seen=f"nothing after {time.monotonic() - started:.1f} s",
                action="raise reward.timeout_s, or lower reward.num_workers to the CPUs of the node",
            )
        try:
            report: dict[str, str] = json.loads(os.read(self._status, _SHOWN_BYTES))
        except ValueError:
            self.process.wait()  # it has closed its end, so it is on its way out
            errors = self.stderr.decode(errors="replace").strip()
            raise RewardError(
                "code must be confined before it runs",
                seen=errors.splitlines()[-1] if errors else f"exit code {self.process.returncode} and no word",
                action=(
                    "remove `code` from reward.verifiers, or use nodes with Landlock (Linux 5.13) or user namespaces"
                ),
            ) from None
        return report

    def wait_end(self, give_up: float) -> int | None:
        """Return the exit code, negative for a signal; None when it still runs at `give_up`."""
        try:
            return self.process.wait(timeout=max(0.0, give_up - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None

    @property
    def stdout(self) -> bytes:
        """Output so far: at most one byte more than the limit."""
        return os.pread(self._stdout.fileno(), self._limits.output_bytes + 1, 0)

    @property
    def stderr(self) -> bytes:
        """Return the end of the error output."""
        number = self._stderr.fileno()
        return os.pread(number, _SHOWN_BYTES, max(0, os.fstat(number).st_size - _SHOWN_BYTES))


def _build_environment(home: str) -> dict[str, str]:
    # A Python of `module load` may need it to start at all.
    libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    # The fixed hash seed lets a resumed run see the same verdicts.
    fixed = {"HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
    return {**libraries, **fixed}
