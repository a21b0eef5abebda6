"""The run and the attempt that a process belongs to. Standard library only."""

import math
from argparse import ArgumentParser, Namespace

from slurm_rl.errors import SlurmRLError
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, read_json

POLL_S = 0.2
"""Interval of the agent's loop."""
_ASKS_PER_S = 8.0
"""Questions of one kind that all nodes of a run together put to the shared disk."""
_CLEANING_S = 5.0
"""Part of KillWait that is kept for ending processes and removing files."""


class Leaving(SlurmRLError):
    """The attempt ends for a cause that another node or Slurm reports."""


def interval_s(least_s: float, num_nodes: int) -> float:
    """Return the seconds between two questions of one node to the shared disk.

    >>> interval_s(0.2, num_nodes=2), interval_s(2.0, num_nodes=8), interval_s(2.0, num_nodes=240)
    (0.25, 2.0, 30.0)
    """
    return max(least_s, num_nodes / _ASKS_PER_S)


def attempt_parser(description: str) -> ArgumentParser:
    """Return a parser with --run-dir and --attempt."""
    parser = ArgumentParser(description=description)
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--attempt", required=True, type=int)
    return parser


def open_attempt(args: Namespace) -> tuple[RunDir, AttemptDir]:
    """Return run and attempt; the run gets the epoch of the controller that started the attempt."""
    run = RunDir(args.run_dir)
    attempt = run.attempt(args.attempt)
    # A machine with a run directory of its own has no start file, and no other controller.
    run.epoch = read_json(attempt.start).get("epoch") if attempt.start.is_file() else None
    return run, attempt


def time_to_leave(attempt: AttemptDir) -> float:
    """Return the seconds that the trainer has for saving after SIGTERM; unlimited without Slurm."""
    start = read_json(attempt.start) if attempt.start.is_file() else {}
    kill_wait_s = start.get("kill_wait_s") or math.inf
    return float(kill_wait_s - min(_CLEANING_S, kill_wait_s / 2))
