"""A node agent as a child process: how it is started, in which environment, and what is cleaned behind it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from slurm_rl.disk import find_refusal
from slurm_rl.errors import BringUpError, ConfigError
from slurm_rl.job.ends import read_record
from slurm_rl.job.silent import EXIT_NOT_STARTED, explain
from slurm_rl.node.cleaning import clean_node
from slurm_rl.node.processes import start_child
from slurm_rl.plan.container import Wrapped
from slurm_rl.plan.job import HOSTS_VARIABLE, JobPlan
from slurm_rl.plan.step import node_words, with_host_setup, wrap_agent
from slurm_rl.run_dir import AttemptDir, RunDir
from slurm_rl.run_secret import TOKEN_VARIABLE


def start_agent(
    plan: JobPlan,
    attempt: AttemptDir,
    rank: int,
    hosts: Sequence[str],
    job_key: str,
    env: Mapping[str, str],
    *,
    death_signal: int = signal.SIGUSR2,
) -> subprocess.Popen[bytes]:
    """The agent of this machine, as a child.

    Args:
        hosts: of all nodes by rank; empty where this machine is the only one.
        death_signal: what it gets when this process dies.
    """
    wrapped = wrap_agent(plan, attempt.number, job_key, own_user(), *node_words(rank, len(hosts) or 1, job_key))
    full = agent_environment(plan, env, wrapped) | ({HOSTS_VARIABLE: ",".join(hosts)} if hosts else {})
    full.pop(TOKEN_VARIABLE, None)
    try:
        return start_child(with_host_setup(plan, wrapped.argv), full, attempt.log(f"node-{rank}"), death_signal)
    except OSError as error:
        if find_refusal(error) is not None:
            raise  # it is the log that cannot be written
        if plan.container["image"] is None:
            raise BringUpError(explain(str(error), EXIT_NOT_STARTED, wrapped.argv[0])) from None
        raise ConfigError(
            f"{wrapped.argv[0]} must be on PATH",
            seen=str(error),
            action="load its module, or choose another container.runtime",
        ) from None


def container_cleanup(plan: JobPlan, attempt: AttemptDir, job_key: str) -> tuple[str, ...]:
    """The command that ends the attempt's container on a node; empty where it ends with its processes."""
    return wrap_agent(plan, attempt.number, job_key, own_user()).cleanup_argv


def agent_environment(plan: JobPlan, environ: Mapping[str, str], wrapped: Wrapped) -> dict[str, str]:
    """The environment in which the step starts; without a container the user's own PYTHONPATH stays, behind ours."""
    merged = {**environ, **wrapped.env}
    if plan.container["image"] is None:
        paths = [*wrapped.env["PYTHONPATH"].split(os.pathsep), *environ.get("PYTHONPATH", "").split(os.pathsep)]
        merged["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))
    return merged


def own_user() -> tuple[int, int]:
    return os.getuid(), os.getgid()


def find_dirty(attempt: AttemptDir, num_nodes: int) -> list[int]:
    """Ranks whose agent did not live to its end; none after an attempt that ended in order."""
    return [rank for rank in range(num_nodes) if read_record(attempt, rank).get("state") != "ended"]


def clean_here(run: RunDir, plan: JobPlan, attempt: AttemptDir, job_key: str, rank: int = 0) -> None:
    """Clean this machine, if it needs it."""
    if rank in find_dirty(attempt, rank + 1):
        clean_node(run, plan, attempt.number, job_key, rank=rank, cleanup=container_cleanup(plan, attempt, job_key))
