"""Background processes, recorded by pid and start time so that any process can stop them later.

The kernel may reuse a pid; pid and start time together identify one process.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.slurm.cluster.packages import ClusterError
from tests.slurm.cluster.waiting import wait_until


def start_time(pid: int) -> int | None:
    """Return the start time of `pid` in clock ticks since boot; None if it does not exist or is a zombie."""
    try:
        # The command name is in parentheses and may contain anything; the fields follow the last parenthesis.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


# Children of this process, to be reaped so that they do not remain as zombies.
_children: list[subprocess.Popen[bytes]] = []


class Daemons:
    """Processes of one cluster; `<directory>/<name>.pid` holds pid and start time of each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def start(self, name: str, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> int:
        """Start `argv` in the background in a new session; return its pid."""
        with log.open("ab") as out:
            process = subprocess.Popen(
                argv, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        _children.append(process)
        (self.directory / f"{name}.pid").write_text(f"{process.pid} {start_time(process.pid)}\n")
        return process.pid

    def wait_ready(self, name: str, check: Callable[[], bool], *, log: Path) -> None:
        """Wait until `check` returns true.

        Raises:
            ClusterError: the process died; with the end of its log.
        """

        def look() -> bool:
            if self.pid(name) is None:
                raise ClusterError(f"{name} died: {log.read_text(errors='replace')[-1000:]}")
            return check()

        wait_until(look, f"{name} to be ready (see {log})", every_s=0.02)

    def pid(self, name: str) -> int | None:
        """Return the pid of `name`, or None if it is not running."""
        _reap()
        try:
            pid, started = (self.directory / f"{name}.pid").read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return int(pid) if str(start_time(int(pid))) == started else None

    def stop(self, name: str, *, kill: bool = False, patience_s: float = 10.0) -> None:
        """Stop `name`: SIGTERM, then SIGKILL after `patience_s`; with `kill`, SIGKILL at once."""
        if (pid := self.pid(name)) is not None:
            signals = [signal.SIGKILL] if kill else [signal.SIGTERM, signal.SIGKILL]
            for number in signals:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                with contextlib.suppress(TimeoutError):
                    wait_until(lambda: self.pid(name) is None, name, timeout_s=patience_s, every_s=0.02)
                    break
        (self.directory / f"{name}.pid").unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Return the names of all recorded processes, the newest first."""
        files = sorted(self.directory.glob("*.pid"), key=lambda file: file.stat().st_mtime_ns)
        return [file.stem for file in reversed(files)]


def _reap() -> None:
    _children[:] = [child for child in _children if child.poll() is None]
