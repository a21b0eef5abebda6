"""The run and the attempt that a process belongs to. Standard library alone."""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace

from slurm_rl.errors import SlurmRLError
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, read_json

POLL_S = 0.2
"""Between two looks at the processes of a node."""
# What is left of KillWait when the trainer is given up: for ending processes and removing files.
_CLEANING_S = 5.0


class Leaving(SlurmRLError):
    """The attempt ends for a cause that is told elsewhere: by another node, or by Slurm."""


def attempt_parser(description: str) -> ArgumentParser:
    """Of a program that is told which attempt it belongs to."""
    parser = ArgumentParser(description=description)
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--attempt", required=True, type=int)
    return parser


def open_attempt(args: Namespace) -> tuple[RunDir, AttemptDir]:
    """What these words name: the run holds the epoch of the controller that began the attempt."""
    run = RunDir(args.run_dir)
    attempt = run.attempt(args.attempt)
    # A machine with a run directory of its own has no such file, and nothing that another controller could want.
    run.epoch = read_json(attempt.start).get("epoch") if attempt.start.is_file() else None
    return run, attempt


def time_to_leave(attempt: AttemptDir) -> float:
    """Seconds after SIGTERM in which the trainer may save; without Slurm, as many as it likes."""
    start = read_json(attempt.start) if attempt.start.is_file() else {}
    kill_wait_s = start.get("kill_wait_s") or math.inf
    return float(kill_wait_s - min(_CLEANING_S, kill_wait_s / 2))
