"""Has a job started again that has lost the node of its own controller, and would go on without one.

With spare nodes a job is --no-kill: Slurm takes a lost node out of it and lets the others be. With the node of the
batch step it does the same, and then holds all that are left, for nobody, until the time limit: no step is there to
notice. So one more process waits on another node, in a step that outlives its srun.
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

_LOOK_S = 10
_SCRIPT = """
while sleep {look_s}; do
  # Nothing, while Slurm's controller is away.
  nodes=$(squeue -h -t R -j {job} -o %N) && [ -n "$nodes" ] || continue
  scontrol show hostnames "$nodes" | grep -qxF {host} && continue
  # Slurm may have started the job again already, elsewhere, and a step of a node that was away outlives that.
  job=$(scontrol show job {job}) || continue
  case "$job" in *" Restarts={restarts} "*) ;; *) exit 0;; esac
  # It ends this step, too.
  scontrol requeue {job} || scancel {job}
done
"""


def render_guard(host: str, job_id: str, restarts: int) -> str:
    """Plain sh: until the job's nodes are known and this host is none of them, then a requeue, or the end where none is
    allowed; nothing once the job has been restarted more often than so."""
    return _SCRIPT.format(job=shlex.quote(job_id), host=shlex.quote(host), restarts=restarts, look_s=_LOOK_S)


class Guard:
    """The one of this job."""

    def __init__(self, plan: JobPlan, job_id: str) -> None:
        self.plan, self.job_id = plan, job_id
        self._step: subprocess.Popen[bytes] | None = None

    def keep(self, hosts: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        """Have it wait, on the last of these nodes that is not this one; anew when its own was lost."""
        own = env.get(NODE_VARIABLE, "")
        others = [host for host in hosts if host != own]
        is_there = self._step is not None and self._step.poll() is None
        if is_there or not own or not others or not self.plan.sbatch.get("no-kill"):
            return
        restarts = int(env.get("SLURM_RESTART_COUNT", 0))
        guard = ["--no-kill", "--output=none", "/bin/sh", "-c", render_guard(own, self.job_id, restarts)]
        # srun ends its task at SIGTERM: when this process dies, its successor starts another.
        self._step = start_child(srun_argv(self.plan, others[-1:], guard), env, log, signal.SIGTERM)
