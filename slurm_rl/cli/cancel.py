"""`cancel`: end a run, a sweep or a pipeline; runs save a checkpoint first.

It answers within seconds even if the file system of the run directory hangs; see run_dir/fs_probe.py.
"""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from slurm_rl.cli.find import find_target, open_target
from slurm_rl.cli.output import catch_errors, note
from slurm_rl.errors import RunDirError
from slurm_rl.launch.jobs import cancel_by_number, cancel_runs, cancel_unseen, is_job_number
from slurm_rl.launch.runs.find import read_recent
from slurm_rl.launch.runs.pipeline import find_stages
from slurm_rl.launch.sweep.ledger import SweepDir, runs_of
from slurm_rl.run_dir.eval_sets import list_evals
from slurm_rl.run_dir.fs_probe import ANSWER_S, LOST_S, run_in_child
from slurm_rl.run_dir.run_dir import RunDir

_SAVES = "stopping after a save"


def run(args: argparse.Namespace) -> int:
    rest = args.rest
    folder = _guess_folder(rest)
    status = run_in_child(lambda: catch_errors(lambda: _cancel(rest)), folder or Path())
    return _cancel_blindly(rest, folder) if status is None else status


def _guess_folder(rest: Sequence[str]) -> Path | None:
    """Return the directory that the words probably name, without a system call on it, since it may hang."""
    for known in read_recent():
        if not rest or rest[0] in (Path(known.path).name, *known.jobs):
            return Path(known.path)
    return Path(rest[0]) if rest else None


def _cancel(rest: Sequence[str]) -> int:
    path = find_target(rest)
    if rest and is_job_number(rest[0]) and not path.exists():
        return _cancel_number(rest[0])
    if (sweep := SweepDir(path)).is_sweep:
        number = cancel_runs(runs_of(sweep))
        note(f"requested that {number} runs save and end: {sweep.path}")
        return 0
    if stages := find_stages(path):
        note(f"requested that {cancel_runs(stages)} stages save and end: {path}")
        return 0
    directory = open_target(path)
    note(f"{_SAVES if cancel_runs([directory]) else 'not running'}: {directory.path}")
    if number := cancel_runs(list_evals(directory).values()):
        note(f"cancelled {number} evaluations of its checkpoints")
    return 0


def _cancel_number(job_id: str) -> int:
    asked = cancel_by_number(job_id)
    note(f"{_SAVES}: {', '.join(asked)}" if asked else f"not running: job {job_id}")
    return 0


def _cancel_blindly(rest: Sequence[str], folder: Path | None) -> int:
    """Cancel by the launcher, after the file system of the run or of this folder did not answer."""
    if len(rest) == 1 and is_job_number(rest[0]):
        return _cancel_number(rest[0])
    rule = f"a run directory must answer within {ANSWER_S:g} s"
    if len(rest) > 1 or folder is None:
        raise RunDirError(rule, seen=f"no answer from {Path.cwd()}", action="name the run, or its Slurm job")
    run = RunDir(folder)
    asked = cancel_unseen(run)
    if not asked:
        raise RunDirError(
            rule,
            seen=f"no answer from {run.path}; no process here and no job of yours in squeue belongs to it",
            action="run it on the machine of the controller, or with the job id: python -m slurm_rl cancel 123; "
            "on a Ray cluster: ray job stop. When the disk answers: python -m slurm_rl status "
            f"{shlex.quote(str(run.path))}",
        )
    note(
        f"slurm_rl: {run.path} has not responded for {ANSWER_S:g} s. Through its launcher, {_SAVES}: "
        f"{', '.join(asked)}; where the folder does not answer either, it ends without saving after {LOST_S:g} s"
    )
    return 0
