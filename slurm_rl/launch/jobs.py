"""Runs and their jobs, for all launchers."""

import contextlib
import math
import os
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from slurm_rl.config.launchers import LAUNCHERS
from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import RunDirError, SlurmRLError, UnknownJobError, WaitError
from slurm_rl.launch.controller.attempts import EXIT_CONTINUES
from slurm_rl.launch.controller.record import Job, RunState, load_job, read_end_state, record_job
from slurm_rl.launch.protocol import Launcher, Submitted
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir, append_event, hold, read_json
from slurm_rl.run_dir.run_lock import RESUME, LockHolder, read_lock

# A scheduler serves all users: the polling interval of a sweep grows.
_FIRST_POLL_S, _LAST_POLL_S = 1.0, 15.0
_LOOK_S = 0.2
# From the recorded end of a run to the end of its controller.
_RELEASE_S = 10.0


def open_launcher(name: str) -> Launcher:
    found: Launcher = load_function(LAUNCHERS[name].launcher)()
    return found


def drive_run(run_dir: str) -> int:
    """Drive the run to its end and return the job's exit code; the entry point of every job."""
    # Only for jobs: submitting and querying must not import it.
    from slurm_rl.launch.controller.supervisor import drive

    run = RunDir(run_dir)
    plan = JobPlan.from_json(read_json(run.plan))
    allocation = plan.launcher_entry.allocation
    assert allocation is not None, plan.launcher
    code = drive(run, plan, load_function(allocation)(run, plan))
    if code == EXIT_CONTINUES:
        sys.exit(code)  # submitit would exit with 0, and a job that waits for this one would start
    return code


def submit_run(run: RunDir, plan: JobPlan) -> Submitted:
    """Start the job and return at once."""
    end = run.end.read_bytes() if run.end.is_file() else None
    run.end.unlink(missing_ok=True)
    try:
        submitted = open_launcher(plan.launcher).submit(run, plan)
    except UnknownJobError:
        raise
    except SlurmRLError:
        if end is not None:
            # The resume was refused: the run is unchanged.
            run.end.write_bytes(end)
        raise
    record_job(run, plan.launcher, submitted.job_id, **submitted.where)
    return submitted


def find_open_job(run: RunDir) -> Job | None:
    """Return the job if only the launcher knows its state; None if the run directory has it."""
    job, end = load_job(run), read_end_state(run)
    # An interrupted job of a queue may wait to start again: `scontrol requeue` looks like a cancel to the controller.
    is_open = end is None or (end.word == "interrupted" and job is not None and job.has_queue)
    return job if is_open else None


def _by_launcher(runs: Iterable[RunDir]) -> dict[str, list[Job]]:
    """Group the open jobs of these runs."""
    jobs: dict[str, list[Job]] = {}
    for job in filter(None, map(find_open_job, runs)):
        jobs.setdefault(job.launcher, []).append(job)
    return jobs


def read_states(runs: Sequence[RunDir]) -> list[RunState]:
    """Return the state of each run, by one query to each launcher for all runs without a recorded end."""
    known: dict[Path, RunState] = {}
    for name, jobs in _by_launcher(runs).items():
        known |= zip([job.run.path for job in jobs], open_launcher(name).read_states(jobs), strict=True)
    states = []
    for run in runs:
        end, state = read_end_state(run), known.get(run.path)
        # A job that waits to start again has not ended, whatever the run directory contains.
        is_newer = state is not None and (end is None or state.word == "pending")
        states.append((state if is_newer else end) or RunState("not submitted"))
    return states


def cancel_runs(runs: Iterable[RunDir]) -> int:
    """Request runs to save and end; return the number of live ones. Raises RunDirError on another machine."""
    number = 0
    for name, jobs in _by_launcher(runs).items():
        number += open_launcher(name).cancel(jobs)
        for job in jobs:
            if not job.run.end.is_file():
                append_event(job.run, "job/cancel_requested", job_id=job.job_id)
    return number


def cancel_unseen(run: RunDir) -> list[str]:
    """Cancel the processes and jobs of an unreadable directory (also of a sweep), without access to its files; return
    them."""
    # Two launchers find the same processes of this machine.
    return list(dict.fromkeys(one for name in LAUNCHERS for one in open_launcher(name).cancel_unseen(run)))


def is_job_number(word: str) -> bool:
    """Return True for `12`, or `12_3` of an array."""
    return re.fullmatch(r"\d+(_\d+)?", word) is not None


def cancel_by_number(job_id: str) -> list[str]:
    """Cancel a job of a queue by its id; return the jobs."""
    return [job for name in LAUNCHERS for job in open_launcher(name).cancel_number(job_id)]


def read_far_log(run: RunDir) -> str | None:
    """Return the log of a run with files on another machine, else None. Raises SlurmRLError if it is down."""
    job = load_job(run)
    return None if job is None or run.attempt_numbers() else open_launcher(job.launcher).read_log(job)


@contextlib.contextmanager
def held_to_resume(run: RunDir) -> Iterator[None]:
    """Lock the run for a resume: of several commands one proceeds, and none while the run's job exists.

    Raises:
        LeaseError: another command or a live controller owns the run.
        RunDirError: its job has not ended, or the run directory cannot be written.
        SlurmRLError: the scheduler does not answer.
    """

    def is_known_alive(holder: LockHolder) -> bool:
        is_launched = holder.launcher in LAUNCHERS
        return is_launched and open_launcher(holder.launcher).is_alive(Job(run, holder.launcher, holder.job))

    with hold(run, LockHolder.of_this_process(RESUME, str(os.getpid())), is_known_alive):
        # A job that waits in a queue has no controller yet.
        [state] = read_states([run])
        if state.error is not None:
            raise state.error
        if state.is_alive:
            raise RunDirError(
                "an active run cannot be resumed",
                seen=str(run.path),
                action=f"wait, or end it first: python -m slurm_rl cancel {shlex.quote(str(run.path))}",
            )
        yield


def count_states(states: Iterable[RunState]) -> str:
    """Return `2 running, 5 pending`, the most frequent first."""
    return ", ".join(f"{number} {word}" for word, number in Counter(state.word for state in states).most_common())


def wait_for_runs(
    runs: Sequence[RunDir], tell: Callable[[str], object] = lambda text: None, *, timeout_s: float = math.inf
) -> list[RunState]:
    """Wait for the end of all runs; call `tell` with each change. Raises WaitError after `timeout_s`."""
    give_up = time.monotonic() + timeout_s
    last, pause = "", _FIRST_POLL_S
    while True:
        states = read_states(runs)
        if (text := count_states(states)) != last:
            last, pause = text, _FIRST_POLL_S
            tell(text)
        # Slurm may be unavailable for a moment.
        if not any(state.is_alive or state.word == "unknown" for state in states):
            return states
        if (left := give_up - time.monotonic()) <= 0:
            raise _explain_wait(runs, states, timeout_s)
        _rest(runs, min(pause, left))
        pause = min(_LAST_POLL_S, pause * 1.5)


def _rest(runs: Sequence[RunDir], pause_s: float) -> None:
    """Sleep, but return early when a single run has ended: its directory is cheaper to poll than the scheduler."""
    end = time.monotonic() + pause_s
    is_watched = len(runs) == 1 and not runs[0].end.is_file()
    while (left := end - time.monotonic()) > 0 and not (is_watched and runs[0].end.is_file()):
        time.sleep(min(left, _LOOK_S))


def _explain_wait(runs: Sequence[RunDir], states: Sequence[RunState], timeout_s: float) -> WaitError:
    rule = f"{'the run' if len(runs) == 1 else 'all runs'} must have ended after {timeout_s:g} s of waiting"
    if len(runs) > 1:
        return WaitError(rule, seen=count_states(states), action="wait longer, or cancel them")
    path = shlex.quote(str(runs[0].path))
    seen = f"{runs[0].path} is {states[0]}"
    return WaitError(rule, seen=seen, action=f"wait longer, or end it: python -m slurm_rl cancel {path}")


def wait_for_release(run: RunDir, timeout_s: float = _RELEASE_S) -> None:
    """Wait a moment until the controller of a run that has ended releases its lock, so that the run can be resumed."""
    give_up = time.monotonic() + min(timeout_s, _RELEASE_S)
    while time.monotonic() < give_up:
        if read_lock(run.lease).is_ended:
            return
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    sys.exit(drive_run(sys.argv[1]))
