"""This machine alone, as the controller of a local run asks it."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from slurm_rl.job.allocation import IsStopped, Nodes
from slurm_rl.job.attempts import AttemptEnd
from slurm_rl.launchers.holding import take_run
from slurm_rl.launchers.launch import start_local_agent
from slurm_rl.launchers.silent import settle_late_agents, settle_silent_agent
from slurm_rl.launchers.slurm.cleaning import clean_here
from slurm_rl.lease import Lease
from slurm_rl.node.ray_cluster import create_token
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir, RunDir


class LocalAllocation:
    """See `Allocation`."""

    can_requeue = False
    has_nodes = True
    notice: str | None = None
    num_agents = 1

    def __init__(self, run: RunDir, plan: JobPlan) -> None:
        self.run_dir, self.plan = run, plan
        self.job_key = f"local-{os.getpid()}-{int(time.time())}"

    def take(self, is_stopped: IsStopped) -> Lease:
        return take_run(self.run_dir, self.plan, is_stopped)

    def prepare(self, attempt: AttemptDir) -> dict[str, Any]:
        if self.plan.torchrun is None:
            create_token(self.run_dir, attempt.number)
        return {}

    def start(self, attempt: AttemptDir, is_stopped: IsStopped) -> Nodes | None:
        return None if is_stopped() else start_local_agent(self.plan, attempt, self.job_key, os.environ)

    def settle(self, attempt: AttemptDir, status: int, *, is_late: bool) -> None:
        if is_late:
            settle_late_agents(self.plan, attempt, [socket.gethostname()])
        settle_silent_agent(self.plan, attempt, 0, socket.gethostname(), attempt.log("node-0"), status)

    def judge(self, attempt: AttemptDir, end: AttemptEnd) -> AttemptEnd:
        clean_here(self.run_dir, self.plan, attempt, self.job_key)
        return end

    def granted_at(self) -> float | None:
        return None

    def requeue(self, is_ended: IsStopped) -> str | None:
        raise NotImplementedError("nobody starts a local run again")

    def close(self, end: dict[str, Any]) -> None:
        """Whoever waits reads end.json."""
