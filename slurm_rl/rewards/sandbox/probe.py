"""Tries, before any completion is scored, what code in the sandbox must not be able to do on this machine."""

from __future__ import annotations

import os
import tempfile
import time

from slurm_rl.errors import RewardError
from slurm_rl.rewards.sandbox.process import Limits
from slurm_rl.rewards.sandbox.runs import run_program

_DEADLINE_S = 60.0
"""The first start reads the standard library from a shared disk."""

_ATTEMPTS = """
import errno, os, signal, socket

def attempt(name, act):
    try:
        act()
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOENT, errno.EROFS):
            print(name)
    else:
        print(name)

attempt("read the files of the user", lambda: open({file!r}))
attempt("read the memory and environment of the trainer", lambda: open("/proc/{pid}/environ", "rb").read())
attempt("write a file", lambda: open("left", "w"))
attempt("open a socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
attempt("open a local socket", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
attempt("start a process", lambda: os.fork() or os._exit(0))
attempt("signal the trainer", lambda: os.kill({pid}, 0))
print("done")
"""


def probe_sandbox() -> dict[str, str]:
    """Return what confines code on this machine: `files`, `network`, `processes`, each to the kernel's means.

    Raises:
        RewardError: the kernel lacks something, or something that must not work does.
    """
    limits = Limits(wall_s=_DEADLINE_S, memory_bytes=1 << 30, output_bytes=1 << 20)
    with tempfile.NamedTemporaryFile() as file:
        source = _ATTEMPTS.format(file=file.name, pid=os.getpid())
        done = run_program(source, b"", limits, time.monotonic() + _DEADLINE_S)
    worked = done.stdout.decode(errors="replace").split("\n")
    if done.exit_code != 0 or worked[-2:] != ["done", ""]:
        raise _not_safe(f"{done.end}, exit code {done.exit_code}: {done.stderr.decode(errors='replace')[-300:]}")
    if worked[:-2]:
        raise _not_safe(f"the code could {', '.join(worked[:-2])}")
    return done.confined


def _not_safe(seen: str) -> RewardError:
    return RewardError(
        "the sandbox must hold on this machine before code of completions runs in it",
        seen=seen,
        action="take `code` out of reward.verifiers, or take nodes with Landlock (Linux 5.13) or user namespaces",
    )
