"""Restart a job that has lost the node of its own controller.

With spare nodes a job is --no-kill: Slurm removes a lost node and lets the others continue. If the lost node is the one
of the batch step, the job would hold the other nodes until its time limit, since no step is left to notice. So one
process waits on another node, in a step that outlives its srun.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_rl.launch.slurm.srun import srun_argv
from slurm_rl.node.processes import start_child
from slurm_rl.plan.job import NODE_VARIABLE, JobPlan

_CHECK_S = 10
_SCRIPT = """
while sleep {check_s}; do
  # Empty while slurmctld does not answer.
  nodes=$(squeue -h -t R -j {job} -o %N) && [ -n "$nodes" ] || continue
  scontrol show hostnames "$nodes" | grep -qxF {host} && continue
  # Slurm may have restarted the job elsewhere, while this step's node was away.
  job=$(scontrol show job {job}) || continue
  case "$job" in *" Restarts={restarts} "*) ;; *) exit 0;; esac
  # This ends the step as well.
  scontrol requeue {job} || scancel {job}
done
"""


def render_guard(host: str, job_id: str, restarts: int) -> str:
    """Return a shell script that requeues the job, or cancels it if requeues are forbidden, once `host` is not in it.

    Args:
        restarts: the script ends if the job has restarted since.
    """
    return _SCRIPT.format(job=shlex.quote(job_id), host=shlex.quote(host), restarts=restarts, check_s=_CHECK_S)


class Guard:
    """The guard of one job."""

    def __init__(self, plan: JobPlan, job_id: str) -> None:
        self.plan, self.job_id = plan, job_id
        self._step: subprocess.Popen[bytes] | None = None

    def keep(self, hosts: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        """Start the guard on the last of the other nodes, unless it runs already."""
        own = env.get(NODE_VARIABLE, "")
        others = [host for host in hosts if host != own]
        is_running = self._step is not None and self._step.poll() is None
        if is_running or not own or not others or not self.plan.sbatch.get("no-kill"):
            return
        restarts = int(env.get("SLURM_RESTART_COUNT", 0))
        guard = ["--no-kill", "--output=none", "/bin/sh", "-c", render_guard(own, self.job_id, restarts)]
        # srun ends its task at SIGTERM: when this process dies, its successor starts another guard.
        self._step = start_child(srun_argv(self.plan, others[-1:], guard), env, log, signal.SIGTERM)
