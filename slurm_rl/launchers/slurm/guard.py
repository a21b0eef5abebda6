"""Has a job started again that has lost the node of its own controller, and would go on without one.

With spare nodes a job is --no-kill: Slurm takes a lost node out of it and lets the others be. With the node of the
batch step it does the same, and then holds all that are left, for nobody, until the time limit: no step is there to
notice. So one more process waits on another node, in a step that outlives its srun.

The lost node is excluded from the next start, where others are enough. If it was only cut off, its slurmd still knows
the job, refuses a second batch step of it, and Slurm (22.05) then holds the job as `launch failed requeued held`.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_rl.launchers.slurm.srun import srun_argv
from slurm_rl.node.processes import start_child
from slurm_rl.plan.job import NODE_VARIABLE, JobPlan

_LOOK_S = 10
# In which Slurm must take the list of a job that it has just put back; it answers within 50 ms.
_TRIES = 40
_SCRIPT = """
job={job} host={host}
while sleep {look_s}; do
  # Nothing, while Slurm's controller is away.
  nodes=$(squeue -h -t R -j $job -o %N) && [ -n "$nodes" ] || continue
  scontrol show hostnames "$nodes" | grep -qxF $host && continue
  out=$(squeue -h -j $job -o %x)
  case $out in ''|N/A|'(null)') out=$host;; *) out=$out,$host;; esac
  total=$(scontrol -o show partition {partition} | grep -o 'TotalNodes=[0-9]*')
  left=$((${{total#TotalNodes=}} - $(scontrol show hostnames $out | wc -l)))
  # The requeue ends this step, too.
  trap '' TERM
  scontrol requeue $job || {{ scancel $job; exit; }}
  tries=0
  until [ $left -lt {needed} ] || [ $tries -ge {tries} ] || scontrol update JobId=$job ExcNodeList=$out; do
    tries=$((tries + 1))
    sleep 0.2
  done
  exit
done
"""


def render_guard(env: Mapping[str, str], job_id: str) -> str:
    """Plain sh: until the job's nodes are known and this one is none of them, then a requeue, or the end where none is
    allowed.

    Args:
        env: of the batch step.
    """
    return _SCRIPT.format(
        job=shlex.quote(job_id),
        host=shlex.quote(env[NODE_VARIABLE]),
        partition=shlex.quote(env.get("SLURM_JOB_PARTITION", "")),
        needed=int(env.get("SLURM_JOB_NUM_NODES", 1)),
        look_s=_LOOK_S,
        tries=_TRIES,
    )


class Guard:
    """The one of this job."""

    def __init__(self, plan: JobPlan, job_id: str) -> None:
        self.plan, self.job_id = plan, job_id
        self._step: subprocess.Popen[bytes] | None = None

    def keep(self, hosts: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        """Have it wait, on the last of these nodes that is not this one; anew when its own was lost."""
        others = [host for host in hosts if host != env.get(NODE_VARIABLE)]
        is_there = self._step is not None and self._step.poll() is None
        if is_there or not others or NODE_VARIABLE not in env or not self.plan.sbatch.get("no-kill"):
            return
        argv = [*srun_argv(self.plan, others[-1:]), "--no-kill", "--output=none"]
        # srun ends its task at SIGTERM: when this process dies, its successor starts another.
        self._step = start_child([*argv, "/bin/sh", "-c", render_guard(env, self.job_id)], env, log, signal.SIGTERM)
