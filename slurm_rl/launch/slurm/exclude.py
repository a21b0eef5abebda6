"""Options of a job that depend on other runs: its dependency, and nodes that are bad now.

Slurm sees the exit code of submitit, which is 0, so `afterok` also holds after a run that failed: the controller looks
at the run before it starts anything. `--kill-on-invalid-dep` removes jobs that wait for a cancelled one.

Slurm refuses to change ExcNodeList of a running job. Right after `scontrol requeue`, while the job completes, it
accepts the change, and keeps it over further requeues and restarts of slurmctld.
"""

import contextlib
from dataclasses import replace
from pathlib import Path

from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.controller.record import has_finished, load_job
from slurm_rl.launch.hooks import Exclusion, open_node_checks
from slurm_rl.launch.slurm.commands import exclude_nodes, excluded_nodes, find_by_script
from slurm_rl.node.rank_discovery import expand_hosts
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.sbatch import SbatchOptions
from slurm_rl.run_dir.run_dir import RunDir, append_event


def user_nodes(plan: JobPlan, option: str) -> list[str]:
    """Return the node names in an sbatch option of the user."""
    names = str(plan.sbatch.get(option, ""))
    return expand_hosts(names) if names else []


def exclude_at_submit(run: RunDir, plan: JobPlan) -> tuple[JobPlan, Exclusion]:
    """Return the plan to submit, without nodes that are bad now. The plan on disk stays, since they may be repaired."""
    try:
        found = open_node_checks(run, plan).exclusion()
    except SlurmRLError:
        return plan, Exclusion()
    if not found.names:
        return plan, found
    exclude = {"exclude": ",".join([*filter(None, [str(plan.sbatch.get("exclude", ""))]), *found.names])}
    het = tuple({**options, **exclude} for options in plan.het)
    return replace(plan, sbatch={**plan.sbatch, **exclude}, het=het), found


def exclude_at_requeue(run: RunDir, plan: JobPlan, job_id: str, found: Exclusion, within_s: float) -> None:
    """Set the excluded nodes of a job that was requeued just now, and log the result."""
    if found.skipped:
        append_event(run, "nodes/exclusion_skipped", job=job_id, why=found.skipped)
    try:
        wanted = sorted({*user_nodes(plan, "exclude"), *found.names})
        if wanted == sorted(excluded_nodes(job_id)):
            return
        exclude_nodes(job_id, wanted, within_s)
    except SlurmRLError as error:
        append_event(run, "nodes/not_excluded", job=job_id, nodes=found.names, cause=str(error))
    else:
        append_event(run, "nodes/excluded", job=job_id, nodes=found.names)


def script_after(run: RunDir, job_id: str) -> Path:
    """Return the batch script of the job that follows this one; see successor.py."""
    return run.submitit / f"after-{job_id}.sh"


def with_dependency(options: SbatchOptions, after: str | None) -> SbatchOptions:
    """Return sbatch's options with a dependency on the run that must finish first; the user's own one stays."""
    before = None if after is None else RunDir(after)
    job = None if before is None or has_finished(before) else load_job(before)
    if job is None or not job.has_queue:
        return options  # the controller looks at the run directory, too
    if "dependency" in options:
        return {**options, "dependency": f"{options['dependency']},afterok:{job.job_id}", "kill-on-invalid-dep": "yes"}
    jobs = [job.job_id]
    with contextlib.suppress(SlurmRLError):  # `?`: any of them
        jobs += find_by_script(str(script_after(job.run, job.job_id)))
    either = "?".join(f"afterok:{job_id}" for job_id in jobs)
    return {**options, "dependency": either, "kill-on-invalid-dep": "yes"}
