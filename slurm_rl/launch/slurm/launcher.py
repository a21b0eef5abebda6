"""Launcher for Slurm: one squeue call queries all jobs, a few calls end them."""

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.controller.agents import OURS, explain, last_words
from slurm_rl.launch.controller.attempts import EXIT_INTERRUPTED
from slurm_rl.launch.controller.record import (
    SILENT_END,
    Job,
    RunState,
    has_finished,
    not_finished,
    read_end_state,
    record_end,
    record_failed,
)
from slurm_rl.launch.protocol import Launcher, Submitted, load_entry
from slurm_rl.launch.slurm import commands
from slurm_rl.launch.slurm.admission import check_admission
from slurm_rl.launch.slurm.commands import JobInfo
from slurm_rl.launch.slurm.exclude import exclude_at_submit, script_after
from slurm_rl.launch.slurm.shared_paths import warn_of_local_paths
from slurm_rl.launch.slurm.states import JobState
from slurm_rl.plan.container import Wrapped
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.sbatch import sbatch_argv
from slurm_rl.plan.step import with_host_setup
from slurm_rl.run_dir.run_dir import RunDir, read_json

STOPPED = "interrupted: "
"""Prefix of a job's comment, after OURS, for a requested end that could not be written to a file."""
_CANCEL_DEADLINE_S = 10.0
_DEPENDENCY = "Dependency"
"""squeue's reason for a job that waits for another."""
# Options that decide where a job may run.
_PROBE_OPTIONS = (
    *("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude", "gres", "gpus-per-node"),
)


class SlurmLauncher(Launcher):
    """See `Launcher`."""

    def check(self, plan: JobPlan) -> tuple[JobPlan, list[str]]:
        spelled = check_admission(plan)
        notes = warn_of_local_paths(spelled)
        if spelled != plan:
            for now, before in zip((spelled.sbatch, *spelled.het), (plan.sbatch, *plan.het), strict=True):
                if now != before:
                    notes.insert(0, f"gpus    {now['gres']}, as this cluster spells {before['gres']}")
        _, excluded = exclude_at_submit(RunDir(plan.run_dir), spelled)
        if excluded.names:
            notes.append(f"nodes   left out as bad: {', '.join(excluded.names)}; see python -m slurm_rl doctor --nodes")
        return spelled, notes

    def submit(self, run: RunDir, plan: JobPlan) -> Submitted:
        from slurm_rl.launch.executors import PlanExecutor

        plan, _ = exclude_at_submit(run, plan)
        return Submitted(str(PlanExecutor(plan).submit(load_entry(), str(run.path)).job_id))

    def read_states(self, jobs: Sequence[Job]) -> list[RunState]:
        try:
            known = commands.query_jobs(job.job_id for job in jobs)
        except SlurmRLError as error:
            # The run directory may have a state, also on a machine without Slurm.
            return [RunState("unknown", str(error), error=error) for _ in jobs]
        gone = [job for job in jobs if not job.run.end.is_file() and _has_ended(known.get(job.job_id))]
        with contextlib.suppress(SlurmRLError):
            if successors := _find_successors(gone):
                known |= commands.query_jobs(successors.values())
                jobs = [replace(job, job_id=successors.get(job.job_id, job.job_id)) for job in jobs]
        return [_read_state(job, known.get(job.job_id)) for job in jobs]

    def is_alive(self, job: Job) -> bool:
        return self.read_states([job])[0].is_alive

    def cancel_unseen(self, run: RunDir) -> list[str]:
        jobs: dict[str, JobState] = {}
        try:
            for folder in (run.submitit, run.path / "arrays"):
                jobs |= commands.find_by_script(str(folder))
        except SlurmRLError:
            return []  # a machine without a Slurm, or that does not reach it
        return _cancel_states(jobs)

    def cancel_number(self, job_id: str) -> list[str]:
        found = commands.query_jobs([job_id])
        return _cancel_states({key: job.state for key, job in found.items() if not job.state.is_ended})

    def cancel(self, jobs: Sequence[Job]) -> int:
        found = commands.query_jobs(job.job_id for job in jobs)
        successors = _find_successors(jobs)
        # First, or they would start. The job of a run may have ended while its successor waits.
        commands.cancel(successors.values())
        _record_cancelled(
            {
                successors[job.job_id]: job.run
                for job in jobs
                if job.job_id in successors and _has_ended(found.get(job.job_id))
            }
        )
        alive = [job for job in jobs if job.job_id in found and not found[job.job_id].state.is_ended]
        running = [job.job_id for job in alive if found[job.job_id].state == JobState.RUNNING]
        waiting = {job.job_id: job.run for job in alive if job.job_id not in running}
        # Pending jobs first, or they would start on the nodes of the others.
        commands.cancel(render_ids(waiting))
        # Signal only the controllers: they save first, for which KillWait of a plain scancel may be too short.
        commands.cancel(render_ids(running), signal="TERM")
        _record_cancelled(waiting)
        return len({job.job_id for job in alive} | successors.keys())

    def build_probe(self, plan: JobPlan, wrapped: Wrapped, timeout_s: float, *, num_nodes: int = 1) -> list[str]:
        # With several node groups the first one, which has the head.
        chosen = {name: plan.sbatch[name] for name in _PROBE_OPTIONS if name in plan.sbatch}
        minutes = max(1, round(timeout_s / 60))
        srun = ["srun", f"--nodes={num_nodes}", f"--ntasks={num_nodes}", "--ntasks-per-node=1", "--mpi=none"]
        srun += ["--job-name=slurm_rl-check", f"--time={minutes}"]
        return [*srun, *sbatch_argv(chosen), *wrapped.srun_args, *with_host_setup(plan, wrapped.argv)]


def _has_ended(found: JobInfo | None) -> bool:
    return found is None or found.state.is_ended


def _find_successors(jobs: Sequence[Job]) -> dict[str, str]:
    """Return the successors in the queue, by the jobs that they follow."""
    if not jobs:
        return {}
    by_script = {script: job_id for job_id, _, script in commands.list_scripts()}
    found = {job.job_id: by_script.get(str(script_after(job.run, job.job_id))) for job in jobs}
    return {job_id: successor for job_id, successor in found.items() if successor}


def _read_state(job: Job, found: JobInfo | None) -> RunState:
    if found is None:
        return _end_unstarted(job) or RunState("dead", f"Slurm knows job {job.job_id} no more")
    attempts = len(job.run.attempt_numbers())
    if found.state == JobState.PENDING:
        before = run_before(job) if found.reason == _DEPENDENCY else None
        parts = [f"after {before.path}" if before else found.reason or "no reason given"]
        if found.start_time:
            parts.append(f"starts about {_clock(found.start_time)}")
        if attempts:
            parts.append(f"{attempts} attempts so far")
        if "held" in found.reason:  # by Slurm itself, as after a launch that failed; no time ends that
            parts.append(f"next: scontrol release {found.job_id}")
        return RunState("pending", ", ".join(parts), is_alive=True)
    if not found.state.is_ended:
        parts = [f"on {found.nodelist}", f"attempt {attempts}" if attempts else "before the first attempt"]
        if found.end_time:
            parts.append(f"until {_clock(found.end_time)} at the latest")
        return RunState(found.state.value, ", ".join(parts), is_alive=True)
    if ended := _end_unstarted(job) if found.state == JobState.CANCELLED and not found.nodelist else None:
        return ended
    if not job.run.end.is_file() and (cause := explain_silent_job(job.run, found)):
        if not cause.startswith(STOPPED):
            return record_failed(job.run, cause)
        cause = cause.removeprefix(STOPPED)
        with contextlib.suppress(OSError):
            record_end(job.run, "interrupted", EXIT_INTERRUPTED, cause)
        return RunState("interrupted", cause)
    exit_code = f", exit code {found.exit_code}" if found.exit_code else ""
    reason = f" ({found.reason}{exit_code})" if found.reason or exit_code else ""
    return RunState("dead", f"Slurm reports {found.slurm_state}{reason}; {SILENT_END}")


def run_before(job: Job) -> RunDir | None:
    """Return the unfinished run that a job without attempts depends on; None without one."""
    if job.run.attempt_numbers():
        return None
    after = read_json(job.run.plan).get("after")
    return None if after is None or has_finished(RunDir(after)) else RunDir(after)


def explain_silent_job(run: RunDir, job: JobInfo) -> str | None:
    """Return why a failed job ended without a report of its controller; None if unknown."""
    if job.comment.startswith(OURS):
        return job.comment.removeprefix(OURS)
    if job.state != JobState.FAILED:
        return None
    starts = [read_json(start) for n in run.attempt_numbers() if (start := run.attempt(n).start).is_file()]
    # `job` is Slurm's plain id, which an element of an array has besides its name there.
    if any(job.job_id in (start["job"], start.get("job_id")) for start in starts):
        return None  # its controller had started, so Python had
    log = run.submitit / f"{job.job_id}_0_log.out"
    if job.reason == "JobLaunchFailure" and not log.is_file():
        return (
            f"the run directory must be seen by every node; {run.path} is not on {job.nodelist or 'its node'}, where "
            "the job could not even open its log. Next: put cluster.run_root on a file system that all nodes share"
        )
    plan = JobPlan.from_json(read_json(run.plan))
    words = last_words(log)
    return explain(words, 1, plan.host_python) if words else None


def _end_unstarted(job: Job) -> RunState | None:
    """Outcome of a job that Slurm removed because the run before it did not finish."""
    before = run_before(job)
    if before is None or job.run.end.is_file():
        return None
    cause = str(not_finished(before, read_end_state(before)))
    with contextlib.suppress(OSError):
        record_end(job.run, "cancelled", EXIT_INTERRUPTED, cause)
    return RunState("cancelled", cause)


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _record_cancelled(waiting: Mapping[str, RunDir]) -> None:
    """Write the ends of jobs that had no controller to do it."""
    deadline, found = time.monotonic() + _CANCEL_DEADLINE_S, commands.query_jobs(waiting)
    # Slurm reports all elements of an array, also running ones.
    while any(job_id in found and not found[job_id].state.is_ended for job_id in waiting):
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
        found = commands.query_jobs(waiting)
    for job_id, run in waiting.items():
        job = found.get(job_id)
        # With nodes it had started after all, and its controller writes the end.
        if job is None or (job.state == JobState.CANCELLED and not job.nodelist):
            record_end(run, "cancelled", EXIT_INTERRUPTED, "cancelled while it waited to start")


def _cancel_states(jobs: Mapping[str, JobState]) -> list[str]:
    """Request these to save and end; return their names."""
    running = [job_id for job_id, state in jobs.items() if state == JobState.RUNNING]
    commands.cancel(render_ids(jobs.keys() - set(running)))
    # On SIGTERM, slurmstepd first writes a line into the job's log, which may hang.
    commands.cancel(render_ids(running), signal="INT")
    return [f"Slurm job {job_id}" for job_id in sorted(jobs)]


def render_ids(job_ids: Iterable[str]) -> list[str]:
    """Return ids for scancel: the elements of an array as one word, which is one request to Slurm.

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
