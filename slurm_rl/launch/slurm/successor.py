"""Successor of a job that Slurm does not restart: the next job of the run, held until the end of this one.

It is submitted when the job starts, since a preemption may cancel the job and a node may be lost without warning, and
it is cancelled when the run ends. Its script is named after the job that it follows, so that a controller finds a
successor whose submission it did not record. If there are two, the first one that takes the run wins: the other finds
that job.json names neither itself nor the job that it follows.
"""

import os
import shlex
import time
from dataclasses import replace

from slurm_rl.errors import SlurmRLError, UnknownJobError
from slurm_rl.launch.controller.attempts import EXIT_INTERRUPTED
from slurm_rl.launch.controller.record import load_job, record_end
from slurm_rl.launch.slurm.commands import cancel, find_by_script, query_jobs, read_fields, submit, wait_for_either
from slurm_rl.launch.slurm.exclude import exclude_at_submit, script_after
from slurm_rl.launch.slurm.partitions import parse_limit, preempt_mode
from slurm_rl.launch.slurm.states import JobState
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.sbatch import render_batch_script, submission_argv
from slurm_rl.run_dir.run_dir import RunDir, append_event, read_json, write_json, write_text

FOLLOWED = "SLURM_RL_FOLLOWED_JOB"
"""Variable of a successor: id and key of the job before it, which differ in an array."""
LOST = "slurm_rl lost the node of its controller"
"""Comment of a job that its guard cancelled; see allocation.py."""
# sbatch may time out although Slurm queues the job.
_LATE_S = 30.0
_LOOK_S = 2.0


class Successor:
    """The job that follows `job_id`."""

    def __init__(self, run: RunDir, plan: JobPlan, job_id: str, job_key: str) -> None:
        self.run_dir, self.plan, self.followed, self.followed_key = run, plan, job_id, job_key
        self.script = script_after(run, job_id)
        self.job_id: str | None = None
        self.refusal = ""

    def ensure(self) -> None:
        """Find the successor or submit it; on failure log the reason, which `status` shows."""
        try:
            self.job_id = self._find() or self._submit()
            wait_for_either(self.followed, self.job_id)
        except SlurmRLError as error:
            self.refusal = error.seen or str(error)
            append_event(self.run_dir, "successor/refused", job=self.followed, cause=self.refusal)

    def _find(self) -> str | None:
        found = sorted(find_by_script(str(self.script)), key=int)
        cancel(found[1:])
        return found[0] if found else None

    def _submit(self) -> str:
        command = (
            f"{shlex.quote(self.plan.host_python)} -u -m slurm_rl.launch.jobs {shlex.quote(str(self.run_dir.path))}"
        )
        text = render_batch_script(self.plan, f"env {FOLLOWED}={self.followed}:{self.followed_key} {command}")
        write_text(self.script, text)
        plan, _ = exclude_at_submit(self.run_dir, self.plan)
        # `run-in-job` knows no time limit.
        limit = {"time": read_fields("job", self.followed).get("TimeLimit", "UNLIMITED")}
        options = {**limit, **plan.sbatch, "dependency": f"afterany:{self.followed}"}
        try:
            job_id = submit([*submission_argv(replace(plan, sbatch=options)), str(self.script)])
        except UnknownJobError:
            if (late := self._await()) is None:
                raise
            job_id = late
        append_event(self.run_dir, "successor/submitted", job=self.followed, job_id=job_id)
        return job_id

    def _await(self) -> str | None:
        """Return the id of a job whose submission was not answered; None if it does not appear."""
        give_up = time.monotonic() + _LATE_S
        while (found := self._find()) is None and time.monotonic() < give_up:
            time.sleep(_LOOK_S)
        return found

    def take_over(self) -> None:
        """Record the successor as the job of the run."""
        job = read_json(self.run_dir.job)
        earlier = [*job.get("earlier", []), self.followed_key]
        write_json(self.run_dir.job, {"launcher": self.plan.launcher, "job_id": self.job_id, "earlier": earlier})
        append_event(self.run_dir, "successor/takes_over", job=self.followed, job_id=self.job_id)

    def withdraw(self) -> None:
        """Cancel the successor of a run that has ended, also of an earlier start of this job."""
        if self.job_id is None and not self.script.is_file():
            return
        try:
            cancel([self.job_id] if self.job_id else find_by_script(str(self.script)))
        except SlurmRLError as error:  # it ends by itself when it starts
            append_event(self.run_dir, "successor/not_cancelled", job_id=self.job_id, cause=str(error))


def needs_successor(job_id: str) -> bool:
    """Return whether Slurm does not start the job again after a requeue or a preemption."""
    job = read_fields("job", job_id)
    return job.get("Requeue") == "0" or "CANCEL" in preempt_mode(job.get("Partition", ""), job.get("QOS", ""))


def was_ended_by_slurm(job_id: str) -> bool:
    """Return whether Slurm preempts the running job or ends it at its time limit, rather than a user."""
    job = read_fields("job", job_id)
    if job.get("PreemptTime", "None") != "None":
        return True
    try:
        limit = parse_limit(job["TimeLimit"])
        started = time.mktime(time.strptime(job["StartTime"], "%Y-%m-%dT%H:%M:%S"))
    except (KeyError, ValueError):
        return False
    return limit is not None and time.time() >= started + limit * 60.0


def follow(run: RunDir, own_id: str) -> tuple[list[str], str | None]:
    """Return the keys of the jobs that this one continues, and the reason if it must not run; the lock is held."""
    followed, _, key = os.environ.get(FOLLOWED, "").partition(":")
    job = load_job(run)
    if job is not None and job.job_id == own_id:
        return list(job.earlier), None
    if not followed:
        return [], None
    if job is None or job.job_id != followed:
        return [], f"job {followed} was followed by job {job.job_id if job else 'unknown'}"
    if run.end.is_file():
        return [], f"the run has ended: {read_json(run.end)['state']}"
    before = query_jobs([followed]).get(followed)
    if before is not None and before.state == JobState.CANCELLED and before.comment != LOST:
        cause = f"job {followed} was cancelled (scancel)"
        record_end(run, "interrupted", EXIT_INTERRUPTED, cause)
        return [], cause
    return [*job.earlier, key], None
