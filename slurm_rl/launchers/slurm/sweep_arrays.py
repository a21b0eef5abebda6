"""Which runs of a sweep share a job array. Pure.

An array has one set of sbatch options and one batch script, so runs that differ in these (swept nodes, partitions,
time limits) are in different arrays; and an array holds no more elements than the cluster allows.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.sbatch import SbatchOptions, escape_percent, render_batch_script, sbatch_argv

# Of one run alone: where its log is, and what it is called.
_OWN_OPTIONS = ("output", "job-name")


@dataclass(frozen=True)
class Member:
    """One run as the arrays see it."""

    plan: JobPlan
    max_parallel: int | None


@dataclass(frozen=True)
class ArrayPlan:
    """One sbatch call."""

    members: tuple[int, ...]
    """Positions of its runs in the batch; the place in this tuple is the index in the array."""
    plan: JobPlan
    """Of any of its runs."""
    max_parallel: int | None
    follows: bool
    """It starts only when the array before it has ended: together they would break max_parallel."""


def build_arrays(members: Sequence[Member], max_size: int) -> list[ArrayPlan]:
    """Arrays for these runs, each with at most `max_size` elements."""
    arrays: list[ArrayPlan] = []
    for group in group_members(members):
        first = members[group[0]]
        for start in range(0, len(group), max_size):
            chunk = tuple(group[start : start + max_size])
            follows = first.max_parallel is not None and bool(arrays)
            arrays.append(ArrayPlan(chunk, first.plan, first.max_parallel, follows))
    return arrays


def group_members(members: Sequence[Member]) -> list[list[int]]:
    """Positions of the runs that can share an array, in order of appearance."""
    groups: dict[str, list[int]] = {}
    for position, member in enumerate(members):
        groups.setdefault(_key(member), []).append(position)
    return list(groups.values())


def _key(member: Member) -> str:
    plan = member.plan
    options = {name: value for name, value in plan.sbatch.items() if name not in _OWN_OPTIONS}
    return json.dumps([options, plan.setup, plan.host_python, member.max_parallel])


def array_argv(array: ArrayPlan, folder: Path, name: str, previous_job: str | None) -> list[str]:
    """sbatch's arguments but the script.

    Args:
        folder: of this array; element i's link in it leads to the run directory, so logs need no table.
        name: of the sweep.
        previous_job: the array that this one follows, if it does.
    """
    size = len(array.members)
    options: SbatchOptions = {
        **array.plan.sbatch,
        "job-name": name,
        "output": f"{escape_percent(str(folder))}/%a/submitit/%A_%a_0_log.out",
        "array": f"0-{size - 1}" + (f"%{array.max_parallel}" if array.max_parallel else ""),
    }
    if array.follows and previous_job is not None:
        options["dependency"] = _and_after(array.plan.sbatch, previous_job)
    return sbatch_argv(options)


def _and_after(options: Mapping[str, str | int | bool], job_id: str) -> str:
    asked = [str(options["dependency"])] if "dependency" in options else []
    return ",".join([*asked, f"afterany:{job_id}"])


def render_array_script(array: ArrayPlan, sweep: Path, folder: Path) -> str:
    """The script of all elements; each finds its run by its index."""
    plan = replace(array.plan, run_dir=str(sweep))
    end = f"{shlex.quote(str(folder))}/$SLURM_ARRAY_TASK_ID/end.json"
    return render_batch_script(plan, element_command(plan.host_python, folder), end=end)


def element_command(host_python: str, folder: Path) -> str:
    """The shell command that runs an element."""
    return f"{shlex.quote(host_python)} -u -m slurm_rl.launchers.slurm.sweep_element {shlex.quote(str(folder))}"
