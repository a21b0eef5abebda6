"""From planned runs to job arrays: run directories are written, one sbatch starts them all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from slurm_rl.config.run import RunConfig
from slurm_rl.disk import describe_disk, naming, next_action
from slurm_rl.errors import RunDirError, SlurmRLError, SubmitError
from slurm_rl.job.create import copy_functions, snapshot_code, write_run
from slurm_rl.job.record import record_job
from slurm_rl.launchers.slurm import commands
from slurm_rl.launchers.slurm.sweep_arrays import ArrayPlan, Member, array_argv, build_arrays, render_array_script
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import write_text
from slurm_rl.sweep.ledger import Ledger, SweepDir, SweepRun, save_ledger

# A shared file system takes its time for each file, so many are under way at once.
_NUM_WRITERS = 16

Item = TypeVar("Item")


@dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep, checked and not yet written."""

    index: int
    overrides: tuple[str, ...]
    config: RunConfig
    plan: JobPlan

    @property
    def member(self) -> Member:
        return Member(self.plan, self.config.cluster.max_parallel_runs)


def create_runs(sweep: SweepDir, ledger: Ledger, runs: Sequence[PlannedRun]) -> Ledger:
    """Write the run directories, then the ledger with them in it.

    Raises:
        RunDirError: the sweep directory cannot be written.
    """
    try:
        with naming(sweep.path):
            sweep.path.mkdir(parents=True, exist_ok=True)
            if not sweep.code.exists():
                snapshot_code(sweep.code)
            copy_functions(sweep.code, (run.config for run in runs))
            _for_all(lambda run: _create_run(sweep, run), runs)
            ledger = replace(ledger, runs=(*ledger.runs, *(SweepRun(run.index, run.overrides) for run in runs)))
            save_ledger(sweep, ledger)
    except OSError as error:
        raise RunDirError(
            f"the sweep directory must be writable ({error.strerror}; {describe_disk(sweep.path)})",
            seen=str(sweep.path),
            action=f"{next_action(error)}, or choose another hydra.sweep.dir or cluster.run_root",
        ) from error
    return ledger


def _create_run(sweep: SweepDir, planned: PlannedRun) -> None:
    run = sweep.run(planned.index)
    run.path.mkdir(mode=0o755)  # whoever may write it may replace the link to the code
    # Slurm opens each element's log in it and makes no folders.
    run.submitit.mkdir()
    run.code.symlink_to(os.path.relpath(sweep.code, run.path))
    write_run(run, planned.config, planned.plan)


def submit_arrays(sweep: SweepDir, ledger: Ledger, runs: Sequence[PlannedRun]) -> Ledger:
    """Submit runs that `create_runs` wrote; all of them, or none.

    Raises:
        SubmitError: Slurm refused an array; those it had taken before are cancelled.
    """
    jobs: list[str] = []
    arrays = build_arrays([run.member for run in runs], commands.max_array_size())
    try:
        for array in arrays:
            members = [runs[position] for position in array.members]
            jobs.append(_submit_array(sweep, ledger.name, array, members, jobs[-1] if jobs else None))
            ledger = _with_jobs(ledger, members, jobs[-1])
            save_ledger(sweep, ledger)
    except SlurmRLError as error:
        if not jobs:
            raise
        commands.cancel(jobs)
        raise SubmitError(
            f"Slurm must take all arrays of a sweep, and refused one of {len(arrays)} after {len(jobs)}",
            seen=str(error),
            action=f"the others are cancelled; what is left of them: {sweep.path}",
        ) from None
    placed = ledger.runs[-len(runs) :]
    _for_all(lambda run: record_job(sweep.run(run.index), "slurm", f"{run.array_job}_{run.array_index}"), placed)
    return ledger


def _submit_array(
    sweep: SweepDir, name: str, array: ArrayPlan, members: Sequence[PlannedRun], previous_job: str | None
) -> str:
    folder = _next_array(sweep)
    for index, run in enumerate(members):
        (folder / str(index)).symlink_to(os.path.relpath(sweep.run(run.index).path, folder))
    script = folder / "job.sh"
    write_text(script, render_array_script(array, sweep.path, folder))
    return commands.submit([*array_argv(array, folder, name, previous_job), str(script)])


def _next_array(sweep: SweepDir) -> Path:
    number = 0
    while (folder := sweep.array(number)).exists():
        number += 1
    folder.mkdir(parents=True)
    return folder


def _with_jobs(ledger: Ledger, members: Sequence[PlannedRun], job_id: str) -> Ledger:
    placed = {run.index: place for place, run in enumerate(members)}
    return replace(
        ledger,
        runs=tuple(
            replace(run, array_job=job_id, array_index=placed[run.index]) if run.index in placed else run
            for run in ledger.runs
        ),
    )


def remove_sweep(sweep: SweepDir, made: Iterable[Path]) -> None:
    """Take back a sweep that was refused; nothing has run. `made` are the folders above it that are new."""
    shutil.rmtree(sweep.path, ignore_errors=True)
    for folder in made:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _for_all(work: Callable[[Item], None], items: Sequence[Item]) -> None:
    with ThreadPoolExecutor(_NUM_WRITERS) as pool:
        for _ in pool.map(work, items):
            pass
