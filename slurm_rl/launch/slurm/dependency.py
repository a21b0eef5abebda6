"""A job that Slurm holds until the run before it has ended.

A job that is requeued, by us or by a preemption, is the same job and has not ended: what waits for it goes on waiting.
`afterok` is then true also of a run that failed, since Slurm sees the exit code of submitit, which is 0; so the
controller of what waited looks at the run before it starts anything. It is never true of a job that was cancelled while
it waited, or that Slurm ended: `--kill-on-invalid-dep` takes what waits for that out of the queue.
"""

from __future__ import annotations

from slurm_rl.config.launchers import LAUNCHERS
from slurm_rl.launch.controller.after import has_finished, not_finished
from slurm_rl.launch.controller.record import Job, load_job, read_end_state
from slurm_rl.plan.sbatch import SbatchOptions
from slurm_rl.run_dir.run_dir import RunDir, read_json


def with_dependency(options: SbatchOptions, after: str | None) -> SbatchOptions:
    """sbatch's options, and those for the run that must have finished first; the user's own dependency stays."""
    before = None if after is None else RunDir(after)
    job = None if before is None or has_finished(before) else load_job(before)
    if job is None or not LAUNCHERS[job.launcher].is_queue:
        return options  # the controller looks at the run directory, too
    asked = [str(options["dependency"])] if "dependency" in options else []
    return {**options, "dependency": ",".join([*asked, f"afterok:{job.job_id}"]), "kill-on-invalid-dep": "yes"}


def run_before(job: Job) -> RunDir | None:
    """The run that a job which has not started waits for, or waited for in vain; None where there is none."""
    if job.run.attempt_numbers():
        return None
    after = read_json(job.run.plan).get("after")
    return None if after is None or has_finished(RunDir(after)) else RunDir(after)


def explain_end(before: RunDir) -> str:
    """Why a job never started."""
    return str(not_finished(before, read_end_state(before)))
