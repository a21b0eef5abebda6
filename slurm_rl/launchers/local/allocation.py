"""This machine alone, as the controller of a local run asks it."""

from __future__ import annotations

import os
import socket
from typing import Any

from slurm_rl.job.agents import clean_here, start_agent
from slurm_rl.job.allocation import IsStopped, Nodes
from slurm_rl.job.attempts import AttemptEnd
from slurm_rl.job.silent import settle_late_agents, settle_silent_agent
from slurm_rl.launchers.here import HereAllocation
from slurm_rl.node.ray_cluster import create_token
from slurm_rl.run_dir import AttemptDir


class LocalAllocation(HereAllocation):
    """See `Allocation`."""

    num_agents = 1

    def prepare(self, attempt: AttemptDir) -> dict[str, Any]:
        if self.plan.torchrun is None:
            create_token(self.run_dir, attempt.number)
        return {}

    def start(self, attempt: AttemptDir, is_stopped: IsStopped) -> Nodes | None:
        return None if is_stopped() else start_agent(self.plan, attempt, 0, (), self.job_key, os.environ)

    def settle(self, attempt: AttemptDir, status: int, *, is_late: bool) -> None:
        if is_late:
            settle_late_agents(self.plan, attempt, [socket.gethostname()])
        settle_silent_agent(self.plan, attempt, 0, socket.gethostname(), attempt.log("node-0"), status)

    def judge(self, attempt: AttemptDir, end: AttemptEnd) -> AttemptEnd:
        clean_here(self.run_dir, self.plan, attempt, self.job_key)
        return end
