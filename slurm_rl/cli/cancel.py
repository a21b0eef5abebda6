"""`cancel`: end a run; it saves first, and what it saved stays."""

from __future__ import annotations

import sys

from slurm_rl.cli.common import find_run
from slurm_rl.slurm.jobs import cancel_job


def run(words: list[str]) -> int:
    directory = find_run(words)
    if cancel_job(directory):
        print(f"asked to save and end: {directory.path}", file=sys.stderr)
    else:
        print(f"not running: {directory.path}", file=sys.stderr)
    return 0
