"""How the controller starts the node agents: a child process here, one srun on Slurm."""

from __future__ import annotations

import functools
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_rl.node.discovery import HOSTS_VARIABLE
from slurm_rl.node.processes import die_with_parent
from slurm_rl.plan.container import ContainerPlan, Mount, Wrapped, wrap
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.sbatch import escape_percent
from slurm_rl.run_dir import AttemptDir


def start_local_agent(
    plan: JobPlan, attempt: AttemptDir, job_key: str, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """The local launcher's only node: a child that is told to stop when the controller dies."""
    wrapped = _in_container(plan, attempt, [*agent_argv(plan, attempt), "--local-job-key", job_key], job_key)
    return _start(with_setup(plan.setup, wrapped.argv), {**env, **wrapped.env}, attempt.log("node-0"))


def start_slurm_agents(
    plan: JobPlan, attempt: AttemptDir, nodes: Sequence[str], job_key: str, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """All node agents by one srun, whatever their number."""
    logs = escape_percent(str(attempt.logs))
    wrapped = _in_container(plan, attempt, agent_argv(plan, attempt), job_key)
    step = [
        *srun_argv(plan, nodes),
        # One node's end is the attempt's end: the others would wait for it until a deadline.
        "--kill-on-bad-exit=1",
        "--unbuffered",
        f"--output={logs}/node-%t.log",
        f"--error={logs}/node-%t.log",
        *wrapped.srun_args,
    ]
    hosts = {HOSTS_VARIABLE: ",".join(nodes)}
    return _start([*step, *with_setup(plan.setup, wrapped.argv)], {**env, **wrapped.env, **hosts}, attempt.log("srun"))


def agent_argv(plan: JobPlan, attempt: AttemptDir) -> list[str]:
    """argv of a node agent, the same on every node."""
    run_dir, number = plan.run_dir, str(attempt.number)
    return [plan.python, "-u", "-m", "slurm_rl.node.agent", "--run-dir", run_dir, "--attempt", number]


def _in_container(plan: JobPlan, attempt: AttemptDir, argv: Sequence[str], job_key: str) -> Wrapped:
    return wrap(
        argv,
        {"PYTHONPATH": f"{plan.run_dir}/code"},
        [Mount(plan.run_dir, plan.run_dir)],
        ContainerPlan.from_json(plan.container),
        accelerator=plan.accelerator,
        name=f"srl-{job_key}-{attempt.number}",
        inherited=[*plan.secret_names, HOSTS_VARIABLE],
        user=(os.getuid(), os.getgid()),
    )


def srun_argv(plan: JobPlan, nodes: Sequence[str]) -> list[str]:
    """srun with one task on each of these nodes and all of the job's share of them."""
    argv = ["srun", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1", "--mpi=none"]
    argv += [f"--nodelist={','.join(nodes)}", "--mem=0"]
    # Since Slurm 22.05 srun does not take this from sbatch by itself, and Ray would run on one core.
    cpus = plan.cpus_per_node or os.environ.get("SLURM_CPUS_ON_NODE")
    if cpus:
        argv.append(f"--cpus-per-task={cpus}")
    return argv


def with_setup(setup: Sequence[str], argv: Sequence[str]) -> list[str]:
    """argv after the setup lines; without any, argv itself and no shell."""
    if not setup:
        return list(argv)
    return ["/bin/bash", "-c", "\n".join([*setup, f"exec {shlex.join(argv)}"])]


def _start(argv: list[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(
            argv,
            env=dict(env),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=functools.partial(die_with_parent, signal.SIGTERM, os.getpid()),
        )
