"""The shell lines of cluster.setup and container.setup, of which none may fail. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

SETUP_RULE = "each line of cluster.setup and container.setup must succeed on every node; this one did not:"
SETUP_ACTION = "Next: correct it, or what it needs on that node"


def with_setup(setup: Sequence[str], argv: Sequence[str], shell: str = "/bin/bash") -> list[str]:
    """argv after the setup lines; without any, argv itself and no shell."""
    if not setup:
        return list(argv)
    return [shell, "-c", "\n".join([*map(_guard, setup), f"exec {shlex.join(argv)}"])]


def _guard(line: str) -> str:
    """The line, or what says that it failed: bash alone would go on, and fail later of something else."""
    words = shlex.quote(f"slurm_rl: {SETUP_RULE} {line}")
    return f"{{ {line}\n}} || {{ status=$?; echo {words} >&2; exit $status; }}"
