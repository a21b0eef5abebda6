"""After an attempt: nodes whose agent could not clean up are cleaned by one further srun."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from slurm_rl.errors import SlurmRLError
from slurm_rl.job.ends import read_record
from slurm_rl.launchers.launch import container_cleanup, srun_argv
from slurm_rl.launchers.slurm.partitions import nodes_down
from slurm_rl.node.cleaning import DONE, clean_node
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir, RunDir, append_event

DEADLINE_S = 30.0


def find_dirty(attempt: AttemptDir, num_nodes: int) -> list[int]:
    """Ranks whose agent did not live to its end; none after an attempt that ended in order."""
    return [rank for rank in range(num_nodes) if read_record(attempt, rank).get("state") != "ended"]


def clean_here(run: RunDir, plan: JobPlan, attempt: AttemptDir, job_key: str, rank: int = 0) -> None:
    """The same for this machine alone, without a Slurm."""
    if rank in find_dirty(attempt, rank + 1):
        clean_node(run, plan, attempt.number, job_key, rank=rank, cleanup=container_cleanup(plan, attempt, job_key))


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
    try:
        done = subprocess.run(argv, env=dict(env), capture_output=True, text=True, timeout=DEADLINE_S)
        output, errors = done.stdout, done.stderr.strip()[-500:]
    except subprocess.TimeoutExpired as late:
        output, errors = (late.stdout or b"").decode(errors="replace"), f"no answer within {DEADLINE_S:g} s"
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
