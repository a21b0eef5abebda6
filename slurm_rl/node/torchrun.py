"""torchrun as a child of the node agent: its start, the signals to its ranks, its end. Standard library only."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from slurm_rl.errors import TrainingError
from slurm_rl.node.attempt import POLL_S
from slurm_rl.node.driver import HANDLER_S, catches, describe_status, find_lack_in
from slurm_rl.node.external import choose_checkpoint, describe_checkpoint
from slurm_rl.node.node_state import NodeState
from slurm_rl.node.ports import PortPlan
from slurm_rl.node.processes import find_marked, has_ended, parent_of, start_child
from slurm_rl.node.rank_discovery import NodeRole
from slurm_rl.node.rendezvous import HeadRecord, comes_true, publish_head
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.task import Rendezvous, build_torchrun_argv
from slurm_rl.run_dir.run_dir import AttemptDir, append_event, read_json


def torchrun_log(attempt: AttemptDir, role: NodeRole) -> Path:
    """Return the log of torchrun and its ranks: driver.log on the head."""
    return attempt.log("driver" if role.is_head else f"torchrun-{role.rank}")


def start_torchrun(
    plan: JobPlan, attempt: AttemptDir, role: NodeRole, rendezvous: Rendezvous, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start this node's ranks, which die with torchrun, and torchrun with its agent."""
    assert plan.torchrun is not None
    if "OMP_NUM_THREADS" not in plan.env:  # torchrun's default is one thread per rank
        share = max(1, len(os.sched_getaffinity(0)) // plan.torchrun.ranks_per_node)
        env = {**env, "OMP_NUM_THREADS": str(plan.torchrun.num_threads or share)}
    rank_argv = (*plan.driver_argv, "--attempt", str(attempt.number))
    argv = build_torchrun_argv(
        plan.torchrun, plan.python, rank_argv, node=role.rank, num_nodes=role.num_nodes, meet=rendezvous
    )
    return start_child(argv, env, torchrun_log(attempt, role), signal.SIGKILL)


class RankSignals:
    """Signals each rank of the node once to save and leave, as soon as it has a handler."""

    def __init__(self, mark: str, num_ranks: int) -> None:
        self.mark, self.num_ranks = mark, num_ranks
        self.signalled: set[int] = set()
        self.is_done = False

    def send(self, torchrun: subprocess.Popen[bytes], asked_at: float) -> None:
        """Send SIGUSR2 to ranks with a handler; terminate torchrun if some have none for too long.

        SIGUSR2 would kill torchrun itself, and ranks that still import torch. To be called until `is_done`.

        Args:
            asked_at: time.monotonic() of the stop request.
        """
        # Direct children only, not those of the ranks.
        children = [pid for pid in find_marked(self.mark) if parent_of(pid) == torchrun.pid]
        for pid in children:
            if pid not in self.signalled and catches(pid, signal.SIGUSR2):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR2)
                self.signalled.add(pid)
        self.is_done = len(self.signalled) >= self.num_ranks
        if not self.is_done and time.monotonic() > asked_at + HANDLER_S:
            torchrun.terminate()
            self.is_done = True


def describe_torchrun_end(log: Path, returncode: int) -> str:
    """Return the first rank that failed, from torchrun's log: `rank 3 was killed by SIGKILL`."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    cause = text.rpartition("Root Cause")[2] if "Root Cause" in text else ""
    match = re.search(r"rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", cause, re.DOTALL)
    if match is None:
        return f"torchrun {describe_status(returncode)}"
    return f"rank {match[1]} {describe_status(int(match[2]))}"


def judge_torchrun(
    plan: JobPlan, attempt: AttemptDir, role: NodeRole, returncode: int, *, is_late: bool = False
) -> int:
    """Return the exit status of this node after its torchrun has ended.

    Rank 0 reports in outcome.json how the run ended. The peers of a dead rank fail as well, by network errors, so a
    rank that was killed by a signal is reported even if rank 0 reported a failure.

    Args:
        is_late: the head had ended before, so that other ranks fail for that reason. A rank killed by SIGKILL is still
            reported: torchrun takes seconds to notice it, and Slurm's SIGKILL would have ended this agent too.

    Raises:
        TrainingError: a rank of this node failed.
        BringUpError: this node's Python has no torch.
    """
    log = torchrun_log(attempt, role)
    seen = describe_torchrun_end(log, returncode)
    outcome = read_json(attempt.outcome) if role.is_head and attempt.outcome.is_file() else None
    if outcome is not None and (outcome["outcome"] != "failed" or "was killed by" not in seen):
        return int(outcome["exit_code"])
    is_blameless = returncode == 0 or (is_late and not re.match(r"rank \d+ was killed by SIGKILL", seen))
    if not role.is_head and is_blameless:
        return 0
    if lack := find_lack_in(plan.python, log):
        raise lack
    rule = "every rank under torchrun must end in order, and rank 0 must report how the run ended"
    raise TrainingError(rule, seen=seen, where=log.name)


def run_torchrun(node: NodeState, ports: PortPlan, env: dict[str, str], deadline: float, num_ranks: int) -> int:
    """Run the ranks of this node; return the exit status, 0 if the node ends because the head has ended."""
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
        if not role.is_head and node.sees_head_end() and not comes_true(lambda: has_ended(driver)):
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
