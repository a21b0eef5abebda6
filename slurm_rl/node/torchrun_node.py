"""torchrun on one node of an attempt."""

from __future__ import annotations

import os
import time

from slurm_rl.node.attempt import POLL_S
from slurm_rl.node.external_resume import choose_checkpoint, describe_checkpoint
from slurm_rl.node.node_state import NodeState
from slurm_rl.node.ports import PortPlan
from slurm_rl.node.processes import has_ended
from slurm_rl.node.rendezvous import HeadRecord, comes_true, publish_head
from slurm_rl.node.torchrun import RankSignals, judge_torchrun, start_torchrun
from slurm_rl.plan.task import Rendezvous
from slurm_rl.run_dir.run_dir import append_event


def run_torchrun(node: NodeState, ports: PortPlan, env: dict[str, str], deadline: float, num_ranks: int) -> int:
    """Run the ranks of this node; return the exit status, 0 if the node ends because the head has ended.

    Args:
        deadline: time.monotonic() by which bring-up must be over.
        num_ranks: ranks of this node.
    """
    plan, attempt, role = node.plan, node.attempt, node.role
    head = _meet(node, ports, deadline)
    rendezvous = Rendezvous(head.ip, head.port, plan.limits.start_timeout_s)
    if plan.external is not None:
        env |= describe_checkpoint(head.checkpoint)
    node.driver = driver = start_torchrun(plan, attempt, role, rendezvous, env)
    if role.is_head:
        append_event(node.run_dir, "torchrun/started", attempt=attempt.number, host=node.host)
    node.write_record(state="running")
    ranks = RankSignals(node.mark, num_ranks)
    while driver.poll() is None:
        if node.stopped_at and not ranks.is_done:
            ranks.send(driver, node.stopped_at)
        node.check()
        if not role.is_head and node.head_has_ended() and not comes_true(lambda: has_ended(driver)):
            return 0
        time.sleep(POLL_S)
    is_late = not role.is_head and node.head_has_ended()
    return judge_torchrun(plan, attempt, role, driver.returncode, is_late=is_late)


def _meet(node: NodeState, ports: PortPlan, deadline: float) -> HeadRecord:
    """Return the head's record; the head itself publishes it."""
    if not node.role.is_head:
        return node.meet_head(deadline)
    checkpoint = choose_checkpoint(node.plan, node.run_dir, node.attempt.number)
    head = HeadRecord(node.host, node.head_ip(), ports.rendezvous, os.getpid(), node.versions, checkpoint)
    # Before the store listens: the other nodes import torch meanwhile.
    publish_head(node.attempt, head)
    return head
