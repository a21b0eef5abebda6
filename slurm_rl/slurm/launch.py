"""How the controller starts the node agents: a child process here, one srun on Slurm."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from slurm_rl.node.processes import die_with_parent
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir


def agent_argv(plan: JobPlan, attempt: AttemptDir) -> list[str]:
    """argv of a node agent, the same on every node."""
    return [
        plan.python, "-u", "-m", "slurm_rl.node.agent", "--run-dir", plan.run_dir, "--attempt", str(attempt.number)
    ]  # fmt: skip


def start_local_agent(
    plan: JobPlan, attempt: AttemptDir, job_key: str, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """The local launcher's only node: a child that is told to stop when the controller dies."""
    argv = [*agent_argv(plan, attempt), "--local-job-key", job_key]
    return _start(argv, env, attempt.log("node-0"))


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
