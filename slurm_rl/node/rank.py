"""One rank under torchrun: `python -m slurm_rl.node.rank <module or file.py> <arguments>`. Standard library only.

Ranks outlive a torchrun that is killed, so each asks the kernel to die with it. torchrun ends all ranks if one has a
status other than 0, while others may still be saving, so a rank that saved and left on request ends with 0.
"""

import os
import runpy
import signal
import sys

from slurm_rl.node.driver import EXIT_CHECKPOINTED
from slurm_rl.node.processes import die_with_parent


def run_rank(words: list[str]) -> None:
    """Run the program in this process, like `python <file>` or `python -m <module>`."""
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
