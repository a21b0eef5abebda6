"""One rank under torchrun: `python -m slurm_rl.node.rank <module or file.py> <arguments>`. Standard library alone.

torchrun leaves two things open. Its ranks outlive it when it is killed: here each asks the kernel to die with
it. And it takes every status but 0 for a failure, at which it ends the other ranks, although one of them may
still be writing: so a rank that saved and left as it was asked ends with 0, and outcome.json has the rest.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys

from slurm_rl.node.driver import EXIT_CHECKPOINTED
from slurm_rl.node.processes import die_with_parent


def run_rank(words: list[str]) -> None:
    """Run the program in this process, and leave as `python <file>` or `python -m <module>` would."""
    program, sys.argv = words[0], words
    try:
        if program.endswith(".py"):
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code != EXIT_CHECKPOINTED:
            raise


if __name__ == "__main__":
    die_with_parent(signal.SIGKILL, os.getppid())
    run_rank(sys.argv[1:])
