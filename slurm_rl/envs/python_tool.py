"""`env.tools=python`: code of the policy in the sandbox of the `code` verifier (rewards/sandbox)."""

import time
from typing import Final

from slurm_rl.rewards.sandbox.process import Limits
from slurm_rl.rewards.sandbox.runs import run_program

_LIMITS: Final = Limits(wall_s=4.0, memory_bytes=1 << 30, output_bytes=10_000)
_START_S: Final = 5.0
"""Seconds for the start of the sandbox on a busy node."""

__all__ = ["python"]


def python(code: str) -> str:
    """Run a Python script and read what it prints. Nothing is kept from one call to the next.

    Args:
        code: The script. It has the standard library, and no files, network or other processes.
    """
    done = run_program(code, b"", _LIMITS, time.monotonic() + _START_S + _LIMITS.wall_s)
    printed = done.stdout.decode(errors="replace")
    if done.end == "deadline":
        return f"{printed}\nIt was ended after {_LIMITS.wall_s:g} s."
    if done.end == "output":
        return f"{printed}\nIt was ended: it printed more than {_LIMITS.output_bytes:,} bytes."
    if done.exit_code != 0:
        # Keep the last line of a traceback; the others name files of the sandbox.
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return f"{printed}\n{last[0] if last else f'It ended with exit code {done.exit_code}.'}".lstrip("\n")
    return printed
