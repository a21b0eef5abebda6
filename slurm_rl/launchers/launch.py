"""How the controller starts the node agents: a child process here, one srun on Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_rl.disk import find_refusal
from slurm_rl.errors import BringUpError, ConfigError
from slurm_rl.launchers.silent import EXIT_NOT_STARTED, explain
from slurm_rl.node.processes import start_child
from slurm_rl.plan.container import Wrapped
from slurm_rl.plan.job import HOSTS_VARIABLE, JobPlan
from slurm_rl.plan.step import build_nodes_step, build_srun, node_words, with_host_setup, wrap_agent
from slurm_rl.run_dir import AttemptDir
from slurm_rl.run_secret import TOKEN_VARIABLE


def start_local_agent(
    plan: JobPlan, attempt: AttemptDir, job_key: str, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """The local launcher's only node: a child that is told to save and leave when the controller dies."""
    return start_agent(plan, attempt, 0, (), job_key, env)


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
    wrapped = wrap_agent(plan, attempt.number, job_key, _user(), *node_words(rank, len(hosts) or 1, job_key))
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
    return wrap_agent(plan, attempt.number, job_key, _user()).cleanup_argv


def start_slurm_agents(
    plan: JobPlan, attempt: AttemptDir, nodes: Sequence[str], job_key: str, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """All node agents by one srun, whatever their number."""
    wrapped = wrap_agent(plan, attempt.number, job_key, _user())
    step = build_nodes_step(plan, nodes, str(attempt.logs), wrapped, cpus=os.environ.get("SLURM_CPUS_ON_NODE"))
    hosts = {HOSTS_VARIABLE: ",".join(nodes)}
    return _start(step, agent_environment(plan, env, wrapped) | hosts, attempt.log("srun"))


def agent_environment(plan: JobPlan, environ: Mapping[str, str], wrapped: Wrapped) -> dict[str, str]:
    """The environment in which the step starts; without a container the user's own PYTHONPATH stays, behind ours."""
    merged = {**environ, **wrapped.env}
    if plan.container["image"] is None:
        paths = [*wrapped.env["PYTHONPATH"].split(os.pathsep), *environ.get("PYTHONPATH", "").split(os.pathsep)]
        merged["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))
    return merged


def srun_argv(plan: JobPlan, nodes: Sequence[str]) -> list[str]:
    """srun on these nodes, in the job around this process."""
    return build_srun(plan, nodes, cpus=os.environ.get("SLURM_CPUS_ON_NODE"))


def _user() -> tuple[int, int]:
    return os.getuid(), os.getgid()


def _start(argv: list[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    # Save and leave. SIGTERM would make srun kill its tasks before they could.
    return start_child(argv, env, log, signal.SIGUSR2)
