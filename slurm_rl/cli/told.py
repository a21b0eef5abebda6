"""The frame around every command: what is wrong is told on stderr, and the exit code says of what kind it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from slurm_rl.cli.terminal import show_plainly
from slurm_rl.errors import SlurmRLError
from slurm_rl.job.attempts import EXIT_FAILED, EXIT_INTERRUPTED


def run_told(work: Callable[[], int]) -> int:
    """The exit code: 0 finished, 1 failed, 2 bad input, 130 interrupted."""
    try:
        return work()
    except SlurmRLError as error:
        print(f"slurm_rl: {show_plainly(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) left; so do we, and nothing is flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except Exception as error:
        from slurm_rl.cli.messages import explain

        print(f"slurm_rl: {show_plainly(explain(error))}", file=sys.stderr)
        return EXIT_FAILED
