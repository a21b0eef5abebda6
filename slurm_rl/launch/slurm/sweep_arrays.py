"""Submit the runs of a sweep as job arrays.

An array has one set of sbatch options and one batch script, so runs that differ in these (swept nodes, partitions,
time limits) are in different arrays. An array has at most as many elements as the cluster allows.

submitit would write a pickle per element after sbatch has returned: slow for a thousand elements on a shared file
system, and too late for the first ones. Ours have a link to their run directory.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slurm_rl.errors import SlurmRLError, SubmitError
from slurm_rl.launch.controller.record import record_job
from slurm_rl.launch.slurm import commands
from slurm_rl.launch.slurm.exclude import exclude_at_submit, with_dependency
from slurm_rl.launch.slurm.partitions import max_array_size
from slurm_rl.launch.sweep.create import PlannedRun, for_all
from slurm_rl.launch.sweep.ledger import Ledger, SweepDir, save_ledger
from slurm_rl.plan.sbatch import SbatchOptions, escape_percent, render_batch_script, sbatch_argv
from slurm_rl.run_dir.run_dir import write_text

_OWN_OPTIONS = ("output", "job-name")
"""Options that differ between the runs of an array."""


def submit_arrays(sweep: SweepDir, ledger: Ledger, runs: Sequence[PlannedRun]) -> Ledger:
    """Submit all runs that `create_runs` wrote, or none. Raises SubmitError after cancelling earlier arrays."""
    jobs: list[str] = []
    # The position of a run in its list is its index in the array.
    groups, most = [[runs[position] for position in group] for group in group_runs(runs)], max_array_size()
    arrays = [group[start : start + most] for group in groups for start in range(0, len(group), most)]
    try:
        for array in arrays:
            jobs.append(_submit_array(sweep, ledger.name, array, jobs[-1] if jobs else None))
            ledger = _with_jobs(ledger, array, jobs[-1])
            save_ledger(sweep, ledger)
    except SlurmRLError as error:
        if not jobs:
            raise
        commands.cancel(jobs)
        raise SubmitError(
            f"Slurm must accept all arrays of a sweep, but refused one of {len(arrays)} after {len(jobs)}",
            seen=str(error),
            action=f"the others are cancelled; their records: {sweep.path}",
        ) from None
    placed = ledger.runs[-len(runs) :]
    for_all(lambda run: record_job(sweep.run(run.index), "slurm", f"{run.array_job}_{run.array_index}"), placed)
    return ledger


def group_runs(runs: Sequence[PlannedRun]) -> list[list[int]]:
    """Return the positions of the runs that can share an array, in order of appearance."""
    groups: dict[str, list[int]] = {}
    for position, run in enumerate(runs):
        options = {name: value for name, value in run.plan.sbatch.items() if name not in _OWN_OPTIONS}
        key = json.dumps([options, run.plan.setup, run.plan.host_python, run.plan.after, run.max_parallel])
        groups.setdefault(key, []).append(position)
    return list(groups.values())


def _submit_array(sweep: SweepDir, name: str, array: Sequence[PlannedRun], previous_job: str | None) -> str:
    number = 0
    while (folder := sweep.array(number)).exists():
        number += 1
    folder.mkdir(parents=True)
    for index, run in enumerate(array):
        (folder / str(index)).symlink_to(os.path.relpath(sweep.run(run.index).path, folder))
    script = folder / "job.sh"
    write_text(script, render_array_script(array, sweep.path, folder))
    plan, _ = exclude_at_submit(sweep.run(array[0].index), array[0].plan)
    array = [replace(array[0], plan=plan), *array[1:]]
    return commands.submit([*array_argv(array, folder, name, previous_job), str(script)])


def array_argv(array: Sequence[PlannedRun], folder: Path, name: str, previous_job: str | None) -> list[str]:
    """Return sbatch's arguments without the script.

    Args:
        folder: folder of this array; the link <i> in it leads to the run directory of element i.
        name: name of the sweep.
        previous_job: the array before this one, which this one waits for if max_parallel_runs is set.
    """
    plan, max_parallel = array[0].plan, array[0].max_parallel
    own = with_dependency(plan.sbatch, plan.after)
    options: SbatchOptions = {
        **own,
        "job-name": name,
        "output": f"{escape_percent(str(folder))}/%a/submitit/%A_%a_0_log.out",
        "array": f"0-{len(array) - 1}" + (f"%{max_parallel}" if max_parallel else ""),
    }
    if max_parallel is not None and previous_job is not None:
        before = [str(own["dependency"])] if "dependency" in own else []
        options["dependency"] = ",".join([*before, f"afterany:{previous_job}"])
    return sbatch_argv(options)


def render_array_script(array: Sequence[PlannedRun], sweep: Path, folder: Path) -> str:
    """Return the batch script of all elements; each finds its run by its index."""
    plan, quoted = replace(array[0].plan, run_dir=str(sweep)), shlex.quote(str(folder))
    element = f"{quoted}/$SLURM_ARRAY_TASK_ID"
    command = f'{shlex.quote(plan.host_python)} -u -m slurm_rl.launch.jobs "$(readlink -f {element})"'
    return render_batch_script(plan, command, end=f"{element}/end.json")


def _with_jobs(ledger: Ledger, array: Sequence[PlannedRun], job_id: str) -> Ledger:
    place = {run.index: index for index, run in enumerate(array)}
    runs = [
        replace(run, array_job=job_id, array_index=place[run.index]) if run.index in place else run
        for run in ledger.runs
    ]
    return replace(ledger, runs=tuple(runs))
