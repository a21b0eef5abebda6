"""The trainer as a child of the head's agent: its start, its signals, its end. Standard library only."""

import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from slurm_rl.errors import BringUpError, TrainingError
from slurm_rl.node.processes import start_child
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import AttemptDir

_NO_MODULE = re.compile(r"ModuleNotFoundError|ImportError")
HANDLER_S = 30.0
"""Time after which a trainer without a signal handler is signalled anyway; imports of torch may take this long."""
EXIT_CHECKPOINTED = 75
"""Exit status of a trainer that was stopped and saved everything (EX_TEMPFAIL)."""


def start_driver(plan: JobPlan, attempt: AttemptDir, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the trainer, which dies with its agent."""
    argv = [*plan.driver_argv, "--attempt", str(attempt.number)]
    return start_child(argv, env, attempt.log("driver"), signal.SIGKILL)


def may_signal(pid: int, asked_at: float) -> bool:
    """Return whether the trainer handles SIGUSR2, or has had HANDLER_S since `asked_at` (time.monotonic())."""
    return catches(pid, signal.SIGUSR2) or time.monotonic() > asked_at + HANDLER_S


def catches(pid: int, signum: int) -> bool:
    """Return whether the process has a handler for the signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signum - 1) & 1)


def exit_status(returncode: int) -> int:
    """Return the status that a shell reports: 128 + n after signal n."""
    return returncode if returncode >= 0 else 128 - returncode


def name_signal(number: int) -> str:
    """Return the name of a signal; real-time signals have only a number.

    >>> name_signal(9), name_signal(40)
    ('SIGKILL', 'signal 40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_status(code: int) -> str:
    """Describe how a process with this return code of `subprocess` ended."""
    return f"was killed by {name_signal(-code)}{_hint(code)}" if code < 0 else f"ended with exit status {code}"


_HINTS: dict[int, str] = {
    signal.SIGKILL: "Linux kills so when memory runs out (dmesg, sacct's MaxRSS)",
    signal.SIGXCPU: "its limit of CPU time is used up (ulimit -H -t on that node)",
    signal.SIGXFSZ: "a file became larger than allowed (ulimit -H -f on that node)",
}


def _hint(code: int) -> str:
    return f"; {_HINTS[-code]}" if -code in _HINTS else ""


def check_driver_end(attempt: AttemptDir, returncode: int) -> None:
    """Raise TrainingError if the trainer ended without writing outcome.json."""
    if attempt.outcome.is_file():
        return
    how = f"killed by {name_signal(-returncode)}, " if returncode < 0 else ""
    seen = f"{how}exit status {exit_status(returncode)}{_hint(returncode)}"
    raise TrainingError("the trainer must report how it ended", seen=seen, where=attempt.log("driver").name)


def find_lack(python: str, last_line: str) -> BringUpError | None:
    """Return the error for a last line of output that names a missing module; None for any other line."""
    if not _NO_MODULE.search(last_line):
        return None
    action = (
        "install slurm_rl with its trainer there (slurm_rl[cuda], slurm_rl[rocm] or slurm_rl[cpu]), or set "
        "cluster.python to an environment that has it"
    )
    return BringUpError(f"{python} must have the packages that slurm_rl needs", seen=last_line, action=action)


def find_lack_in(python: str, log: Path) -> BringUpError | None:
    """Return `find_lack` of the last line of a log."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    return find_lack(python, text.rstrip().rpartition("\n")[2])
