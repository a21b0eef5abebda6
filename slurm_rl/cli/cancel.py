"""`cancel`: end a run or a whole sweep; runs save first, and what they saved stays.

It answers within seconds also where the run directory does not; see hang.py.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from slurm_rl.cli.find import find_run, find_sweep
from slurm_rl.cli.told import run_told
from slurm_rl.cli.words import read_words
from slurm_rl.errors import RunDirError
from slurm_rl.hang import ANSWER_S, LOST_S, run_beside
from slurm_rl.launchers.jobs import cancel_by_number, cancel_runs, cancel_unseen, is_job_number
from slurm_rl.run_dir import RunDir
from slurm_rl.runs.find import parse_path
from slurm_rl.runs.pipeline import find_stages
from slurm_rl.sweep.ledger import runs_of

_SAVES = "asked to save and end"


def run(words: list[str]) -> int:
    rest = read_words("cancel", words).rest
    status = run_beside(lambda: run_told(lambda: _cancel(rest)), Path(rest[0] if rest else "."))
    return _cancel_blindly(rest) if status is None else status


def _cancel(rest: Sequence[str]) -> int:
    if len(rest) == 1 and is_job_number(rest[0]) and not Path(rest[0]).exists():
        return _cancel_number(rest[0])
    if sweep := find_sweep(rest):
        number = cancel_runs(runs_of(sweep))
        print(f"asked {number} runs to save and end: {sweep.path}", file=sys.stderr)
        return 0
    if len(rest) == 1 and (stages := find_stages(parse_path(rest[0]))):
        print(f"asked {cancel_runs(stages)} stages to save and end: {rest[0]}", file=sys.stderr)
        return 0
    directory = find_run(rest)
    word = _SAVES if cancel_runs([directory]) else "not running"
    print(f"{word}: {directory.path}", file=sys.stderr)
    return 0


def _cancel_number(job_id: str) -> int:
    asked = cancel_by_number(job_id)
    print(f"{_SAVES}: {', '.join(asked)}" if asked else f"not running: job {job_id}", file=sys.stderr)
    return 0


def _cancel_blindly(rest: Sequence[str]) -> int:
    """The file system of the run, or of this folder, did not answer."""
    if len(rest) == 1 and is_job_number(rest[0]):
        return _cancel_number(rest[0])
    rule = f"a run directory must answer within {ANSWER_S:g} s"
    if len(rest) != 1:
        raise RunDirError(rule, seen=f"silence of {Path.cwd()}", action="name the run, or its Slurm job")
    run = RunDir(rest[0])
    asked = cancel_unseen(run)
    if not asked:
        raise RunDirError(
            rule,
            seen=f"silence of {run.path}; no process here and no job of yours in squeue was started for it",
            action="on the machine of its controller, or by the number of its job: python -m slurm_rl cancel 123; "
            f"a Ray cluster's: ray job stop. When it answers: python -m slurm_rl status {shlex.quote(str(run.path))}",
        )
    print(
        f"slurm_rl: {run.path} has not answered for {ANSWER_S:g} s. By the word of its launcher alone: {_SAVES}: "
        f"{', '.join(asked)}; where the folder does not answer either, it ends without saving after {LOST_S:g} s",
        file=sys.stderr,
    )
    return 0
