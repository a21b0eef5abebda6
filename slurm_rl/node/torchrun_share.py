"""Torchrun on one node of an attempt: its ranks, until they have ended."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from slurm_rl.node.attempt import POLL_S
from slurm_rl.node.external_resume import choose_checkpoint, describe_checkpoint
from slurm_rl.node.ports import PortPlan
from slurm_rl.node.processes import has_ended
from slurm_rl.node.rendezvous import HeadRecord, comes_true, publish_head
from slurm_rl.node.torchrun import RankSignals, judge_torchrun, start_torchrun
from slurm_rl.plan.task import Rendezvous
from slurm_rl.run_dir.run_dir import append_event

if TYPE_CHECKING:
    from slurm_rl.node.agent import NodeAgent


def run_torchrun(agent: NodeAgent, ports: PortPlan, env: dict[str, str], deadline: float, num_ranks: int) -> int:
    """Exit status of this node's torchrun; 0 of a node that ends because the head has ended.

    Args:
        deadline: of the bring-up, on the monotonic clock.
        num_ranks: of this node.
    """
    plan, attempt, role = agent.plan, agent.attempt, agent.role
    head = _meet(agent, ports, deadline)
    meet = Rendezvous(head.ip, head.port, plan.limits.start_timeout_s)
    if plan.external is not None:
        env |= describe_checkpoint(head.checkpoint)
    agent.driver = driver = start_torchrun(plan, attempt, role, meet, env)
    if role.is_head:
        append_event(agent.run_dir, "torchrun/started", attempt=attempt.number, host=agent.host)
    agent.write_record(state="running")
    ranks = RankSignals(agent.mark, num_ranks)
    while driver.poll() is None:
        if agent.stopped_at and not ranks.is_done:
            ranks.tell(driver, agent.stopped_at)
        agent.check_terminated()
        agent.check_beats()
        if not role.is_head and agent.head_has_ended() and not comes_true(lambda: has_ended(driver)):
            return 0
        time.sleep(POLL_S)
    is_late = not role.is_head and agent.head_has_ended()
    return judge_torchrun(plan, attempt, role, driver.returncode, is_late=is_late)


def _meet(agent: NodeAgent, ports: PortPlan, deadline: float) -> HeadRecord:
    """The head's record, written here where this node is the head."""
    if not agent.role.is_head:
        return agent.meet_head(deadline)
    newest = choose_checkpoint(agent.plan, agent.run_dir, agent.attempt.number)
    head = HeadRecord(agent.host, agent.head_ip(), ports.rendezvous, os.getpid(), agent.versions, newest)
    # Before the store listens: the others import torch meanwhile, and wait for it themselves.
    publish_head(agent.attempt, head)
    return head
