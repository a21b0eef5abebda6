"""Steps of the job around this process: all node agents by one srun."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from slurm_rl.job.agents import agent_environment, own_user
from slurm_rl.node.processes import start_child
from slurm_rl.plan.job import HOSTS_VARIABLE, JobPlan
from slurm_rl.plan.step import build_nodes_step, build_srun, wrap_agent
from slurm_rl.run_dir import AttemptDir


def start_slurm_agents(
    plan: JobPlan, attempt: AttemptDir, nodes: Sequence[str], job_key: str, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """All node agents by one srun, whatever their number."""
    wrapped = wrap_agent(plan, attempt.number, job_key, own_user())
    step = build_nodes_step(plan, nodes, str(attempt.logs), wrapped, cpus=os.environ.get("SLURM_CPUS_ON_NODE"))
    hosts = {HOSTS_VARIABLE: ",".join(nodes)}
    # Save and leave. SIGTERM would make srun kill its tasks before they could.
    return start_child(step, agent_environment(plan, env, wrapped) | hosts, attempt.log("srun"), signal.SIGUSR2)


def srun_argv(plan: JobPlan, nodes: Sequence[str]) -> list[str]:
    """srun on these nodes, in the job around this process."""
    return build_srun(plan, nodes, cpus=os.environ.get("SLURM_CPUS_ON_NODE"))


def run_srun(argv: Sequence[str], env: Mapping[str, str], deadline_s: float) -> tuple[str, str]:
    """What the nodes printed, also of a step that is not through in time, and srun's last words."""
    try:
        done = subprocess.run(argv, env=dict(env), capture_output=True, text=True, timeout=deadline_s)
        return done.stdout, done.stderr.strip()[-500:]
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(errors="replace"), f"no answer within {deadline_s:g} s"
