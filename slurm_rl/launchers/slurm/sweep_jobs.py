"""The jobs of a whole sweep: ended by a handful of Slurm calls, whatever their number."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from slurm_rl.launchers.jobs import RunState, cancel_job, load_job, open_job_id, read_states, record_cancelled
from slurm_rl.launchers.slurm import commands
from slurm_rl.launchers.slurm.states import JobState
from slurm_rl.run_dir import RunDir

_CANCEL_DEADLINE_S = 10.0
# Slurm's controller serves everybody; a sweep that waits asks ever less often.
_FIRST_POLL_S, _LAST_POLL_S = 1.0, 15.0


def cancel_runs(runs: Sequence[RunDir]) -> int:
    """Ask all runs that have not ended to save and end; how many these are."""
    jobs = {job_id: run for run in runs if (job_id := open_job_id(run))}
    found = commands.query_jobs(jobs)
    alive = {job_id: run for job_id, run in jobs.items() if job_id in found and not found[job_id].state.is_ended}
    running = {job_id for job_id in alive if found[job_id].state == JobState.RUNNING}
    waiting = {job_id: run for job_id, run in alive.items() if job_id not in running}
    # First those that wait, or they would start on the nodes that the others leave.
    commands.cancel(render_ids(waiting))
    # To the controllers alone: they save first, which a plain scancel's KillWait may be too short for.
    commands.cancel(render_ids(running), signal="TERM")
    _record_cancelled(waiting)
    return len(alive) + sum(cancel_job(run) for run in runs if _is_local(run))


def _is_local(run: RunDir) -> bool:
    job = load_job(run)
    return job is not None and job["launcher"] == "local"


def _record_cancelled(waiting: dict[str, RunDir]) -> None:
    """Write the ends of jobs that had no controller to do it."""
    deadline = time.monotonic() + _CANCEL_DEADLINE_S
    while True:
        found = commands.query_jobs(waiting)
        if all(job_id not in found or found[job_id].state.is_ended for job_id in waiting):
            break
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    for job_id, run in waiting.items():
        record_cancelled(run, found.get(job_id))


def render_ids(job_ids: Iterable[str]) -> list[str]:
    """Ids as scancel takes them: the elements of an array in one word, which is one request to Slurm.

    >>> render_ids(["7", "12_0", "12_1", "12_2", "12_9"])
    ['12_[0-2,9]', '7']
    """
    arrays: dict[str, list[int]] = {}
    plain = []
    for job_id in job_ids:
        array, _, index = job_id.partition("_")
        if index:
            arrays.setdefault(array, []).append(int(index))
        else:
            plain.append(job_id)
    return sorted([*plain, *(f"{array}_[{_ranges(indices)}]" for array, indices in arrays.items())])


def _ranges(numbers: Iterable[int]) -> str:
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def count_states(states: Iterable[RunState]) -> str:
    """`2 running, 5 pending`, the most first."""
    return ", ".join(f"{number} {word}" for word, number in Counter(state.word for state in states).most_common())


def wait_for_runs(runs: Sequence[RunDir], tell: Callable[[str], None]) -> list[RunState]:
    """Wait until every run has ended; `tell` hears when something has changed."""
    told, pause = "", _FIRST_POLL_S
    while True:
        states = read_states(runs)
        if (text := count_states(states)) != told:
            told, pause = text, _FIRST_POLL_S
            tell(text)
        # Slurm away for a moment is no end.
        if not any(state.is_alive or state.word == "unknown" for state in states):
            return states
        time.sleep(pause)
        pause = min(_LAST_POLL_S, pause * 1.5)
