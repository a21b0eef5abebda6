"""Cause of the end of srun tasks or jobs that ended before our Python could report one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from slurm_rl.launch.controller.agents import OURS, explain, last_words, settle_silent_agent
from slurm_rl.launch.slurm.commands import JobInfo
from slurm_rl.launch.slurm.states import JobState
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.node_groups import group_of
from slurm_rl.plan.step import task_log
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, read_json

STOPPED = "interrupted: "
"""Prefix of a job's comment, after OURS, for a requested end that could not be written to a file."""


def settle_silent_tasks(plan: JobPlan, attempt: AttemptDir, hosts: Sequence[str], srun_errors: Sequence[str]) -> None:
    """Write records of agents that could not, by srun's words on its tasks: `n2: task 1: Exited with exit code 2`."""
    for line in srun_errors:
        found = re.fullmatch(r"(\S+): tasks? (\d+)\S*: Exited with exit code (\d+)", line)
        if found and found[1] in hosts:
            log = _find_log(plan, attempt, hosts.index(found[1]), int(found[2]))
            settle_silent_agent(plan, attempt, hosts.index(found[1]), found[1], log, int(found[3]))


def _find_log(plan: JobPlan, attempt: AttemptDir, rank: int, task: int) -> Path:
    """Return srun's output files of the tasks. For a component srun numbers tasks from 0 and files from its own number,
    so the order of the files counts."""
    if not plan.node_groups:
        return attempt.log(f"{task_log(None)}{task}")
    group = plan.node_groups.index(group_of(plan.node_groups, rank))
    files = attempt.logs.glob(f"{task_log(group)}*.log")
    logs = sorted(files, key=lambda path: int(path.stem.rpartition("-")[2]))
    return logs[task] if task < len(logs) else attempt.log(f"{task_log(group)}{task}")


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
