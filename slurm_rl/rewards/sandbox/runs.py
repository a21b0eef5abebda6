"""The two ways to run code against a row: as a program with stdin and stdout, and by calls of its functions."""

import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Literal

from slurm_rl.errors import DataError, RewardError
from slurm_rl.rewards.sandbox.process import Limits, Sandboxed, open_memory

End = Literal["exit", "deadline", "output"]
_VERDICT_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How a program ended."""

    end: End
    exit_code: int | None
    """Negative for a signal; None when it was ended from outside."""
    stdout: bytes
    stderr: bytes
    confined: dict[str, str]
    """Report of `inside.confine`."""


def run_program(source: str, stdin: bytes, limits: Limits, give_up: float) -> Finished:
    """Run `source` as a script with `stdin` until `give_up`; `limits.wall_s` begins when it is confined.

    Raises:
        RewardError: the process could not be confined, so no code ran.
    """
    job = {"mode": "script", "source": source}
    with Sandboxed(job, limits, stdin=stdin) as child:
        confined = child.wait_confined(give_up)
        exit_code = child.wait_end(min(give_up, time.monotonic() + limits.wall_s))
        stdout, stderr = child.stdout, child.stderr
    end: End = "output" if len(stdout) > limits.output_bytes else "deadline" if exit_code is None else "exit"
    kept = stdout[: limits.output_bytes]
    return Finished(end=end, exit_code=exit_code, stdout=kept, stderr=stderr, confined=confined)


def run_checks(
    source: str, limits: Limits, give_up: float, *, asserts: Sequence[str], setup: str, functions: Sequence[str]
) -> list[bool]:
    """Run `asserts`, each after `setup`, in one process while `source` answers in another.

    Args:
        functions: names of the code that the asserts use.
        limits: `wall_s` is the deadline of one call of the code.

    Returns:
        Whether each passed; those not reached before `give_up` or before the code died did not.

    Raises:
        DataError: a check cannot work with any code.
        RewardError: a process could not be confined.
    """
    requests, replies = os.pipe(), os.pipe()
    whole = replace(limits, wall_s=max(limits.wall_s, give_up - time.monotonic()), output_bytes=_VERDICT_BYTES)
    serve = {"mode": "serve", "source": source}
    given = {"asserts": asserts, "setup": setup, "functions": functions}
    check = {"mode": "check", **given, "timeout_s": limits.wall_s}
    with ExitStack() as opened:
        verdicts = opened.enter_context(open_memory())
        with ExitStack() as handed:  # ours to close as soon as the two have them
            for fd in (*requests, *replies):
                handed.callback(os.close, fd)
            code = opened.enter_context(Sandboxed(serve, whole, fds={"requests": requests[0], "replies": replies[1]}))
            fds = {"requests": requests[1], "replies": replies[0], "verdicts": verdicts.fileno()}
            judge = opened.enter_context(Sandboxed(check, whole, fds=fds))
        code.wait_confined(give_up)
        judge.wait_confined(give_up)
        judge.wait_end(give_up)
        return _read_verdicts(os.pread(verdicts.fileno(), _VERDICT_BYTES, 0), len(asserts))


def _read_verdicts(data: bytes, count: int) -> list[bool]:
    lines = [json.loads(line) for line in data.splitlines(keepends=True) if line.endswith(b"\n")]
    for line in lines:
        if "bad" in line:
            raise DataError(
                "a check may pass only plain values to the code: numbers, text, lists, dicts and values that the code "
                "returned",
                seen=line["bad"],
                action="rewrite the row's asserts with plain arguments",
            )
    passed = [line["passed"] for line in lines[:count]]
    return [*passed, *[False] * (count - len(passed))]


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
    """Return the kernel feature that confines `files`, `network` and `processes`; raise RewardError if any leaks."""
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
