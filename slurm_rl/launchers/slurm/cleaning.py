"""After an attempt: nodes whose agent could not clean up are cleaned by one further srun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_rl.errors import SlurmRLError
from slurm_rl.job.agents import container_cleanup, find_dirty
from slurm_rl.launchers.slurm.partitions import nodes_down
from slurm_rl.launchers.slurm.srun import run_srun, srun_argv
from slurm_rl.node.cleaning import DONE
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir, RunDir, append_event

DEADLINE_S = 30.0


def clean_nodes(
    run: RunDir, plan: JobPlan, attempt: AttemptDir, hosts: Sequence[str], job_key: str, env: Mapping[str, str]
) -> list[str]:
    """Clean the nodes that need it.

    Args:
        hosts: of the attempt, by rank.

    Returns:
        The hosts among them that did not answer.
    """
    ranks = find_dirty(attempt, len(hosts))
    if not ranks:
        return []
    dirty = [hosts[rank] for rank in ranks]
    reachable = _without_down(dirty)
    if not reachable:
        append_event(run, "nodes/cleaned", attempt=attempt.number, hosts=dirty, silent=dirty, errors="all are down")
        return dirty
    argv = [*srun_argv(plan, reachable), plan.host_python, "-m", "slurm_rl.node.cleaning"]
    argv += ["--run-dir", plan.run_dir, "--attempt", str(attempt.number), "--job-key", job_key]
    argv += ["--hosts", ",".join(hosts), "--", *container_cleanup(plan, attempt, job_key)]
    output, errors = run_srun(argv, env, DEADLINE_S)
    answered = {line.removeprefix(DONE).strip() for line in output.splitlines() if line.startswith(DONE)}
    silent = [host for host in dirty if host not in answered]
    append_event(run, "nodes/cleaned", attempt=attempt.number, hosts=dirty, silent=silent, errors=errors)
    return silent


def _without_down(hosts: Sequence[str]) -> list[str]:
    """Since Slurm 23.02 an srun that names a lost node starts on no node at all."""
    try:
        down = nodes_down()
    except SlurmRLError:
        return list(hosts)
    return [host for host in hosts if host not in down]
