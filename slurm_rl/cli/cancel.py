"""`cancel`: end a run or a whole sweep; runs save first, and what they saved stays."""

from __future__ import annotations

import sys

from slurm_rl.cli.find import find_run, find_sweep
from slurm_rl.cli.words import read_words
from slurm_rl.launchers.jobs import cancel_runs
from slurm_rl.sweep.ledger import runs_of


def run(words: list[str]) -> int:
    rest = read_words("cancel", words).rest
    if sweep := find_sweep(rest):
        number = cancel_runs(runs_of(sweep))
        print(f"asked {number} runs to save and end: {sweep.path}", file=sys.stderr)
        return 0
    directory = find_run(rest)
    word = "asked to save and end" if cancel_runs([directory]) else "not running"
    print(f"{word}: {directory.path}", file=sys.stderr)
    return 0
