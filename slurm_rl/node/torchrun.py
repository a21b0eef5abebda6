"""torchrun as a node's agent sees it: started, its ranks told to save, judged by its end. Standard library alone."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from slurm_rl.errors import TrainingError
from slurm_rl.node.discovery import NodeRole
from slurm_rl.node.driver import HANDLER_S, catches, describe_status, find_lack_in
from slurm_rl.node.processes import find_marked, parent_of, start_child
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.task import Rendezvous, build_torchrun_argv
from slurm_rl.run_dir.run_dir import AttemptDir, read_json


def torchrun_log(attempt: AttemptDir, role: NodeRole) -> Path:
    """Where torchrun and the ranks of this node write; on the head node it is the log that people look at first."""
    return attempt.log("driver" if role.is_head else f"torchrun-{role.rank}")


def start_torchrun(
    plan: JobPlan, attempt: AttemptDir, role: NodeRole, meet: Rendezvous, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start this node's ranks; they die with torchrun, and torchrun with its agent."""
    assert plan.torchrun is not None
    # Without it torchrun gives every rank one thread. Only here are the node's cores known, where a plan has no number.
    if "OMP_NUM_THREADS" not in plan.env:
        share = max(1, len(os.sched_getaffinity(0)) // plan.torchrun.ranks_per_node)
        env = {**env, "OMP_NUM_THREADS": str(plan.torchrun.num_threads or share)}
    rank_argv = (*plan.driver_argv, "--attempt", str(attempt.number))
    argv = build_torchrun_argv(
        plan.torchrun, plan.python, rank_argv, node=role.rank, num_nodes=role.num_nodes, meet=meet
    )
    return start_child(argv, env, torchrun_log(attempt, role), signal.SIGKILL)


class RankSignals:
    """Tells every rank of this node once to save and leave, and none before it can hear it."""

    def __init__(self, mark: str, num_ranks: int) -> None:
        self.mark, self.num_ranks = mark, num_ranks
        self.told: set[int] = set()
        self.is_done = False

    def tell(self, torchrun: subprocess.Popen[bytes], asked_at: float) -> None:
        """SIGUSR2 to those that have a handler; a node whose ranks have none for too long is ended.

        SIGUSR2 to torchrun itself would kill it, and ranks that import torch have no handler yet. Call it
        until `is_done`.

        Args:
            asked_at: when the stop was asked for, by time.monotonic().
        """
        # Without what the ranks started themselves.
        ranks = [pid for pid in find_marked(self.mark) if parent_of(pid) == torchrun.pid and pid not in self.told]
        for pid in filter(lambda pid: catches(pid, signal.SIGUSR2), ranks):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR2)
            self.told.add(pid)
        self.is_done = len(self.told) >= self.num_ranks
        if not self.is_done and time.monotonic() > asked_at + HANDLER_S:
            torchrun.terminate()
            self.is_done = True


def describe_torchrun_end(log: Path, returncode: int) -> str:
    """Which rank of this node failed first, by torchrun's own word: `rank 3 was killed by SIGKILL`."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    cause = text.rpartition("Root Cause")[2] if "Root Cause" in text else ""
    found = re.search(r"rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", cause, re.DOTALL)
    if found is None:
        return f"torchrun {describe_status(returncode)}"
    return f"rank {found[1]} {describe_status(int(found[2]))}"


def judge_torchrun(
    plan: JobPlan, attempt: AttemptDir, role: NodeRole, returncode: int, *, is_late: bool = False
) -> int:
    """The exit status of this node, once its torchrun has ended.

    Rank 0 says in outcome.json how the run ended. Ranks whose peers died fail too, by an error of the network;
    so a rank that a signal killed is named together with what rank 0 said, as are all that failed on other nodes.

    Args:
        is_late: the head node had ended before. What ends then ends of that, unless SIGKILL ended a rank: torchrun
            takes its seconds to say so, and Slurm's own SIGKILL would have met this agent too.

    Raises:
        TrainingError: a rank of this node did not end in order.
        BringUpError: this node's Python has no torch.
    """
    seen = describe_torchrun_end(torchrun_log(attempt, role), returncode)
    found = read_json(attempt.outcome) if role.is_head and attempt.outcome.is_file() else None
    if found is not None and (found["outcome"] != "failed" or "was killed by" not in seen):
        return int(found["exit_code"])
    is_blameless = returncode == 0 or (is_late and not re.match(r"rank \d+ was killed by SIGKILL", seen))
    if not role.is_head and is_blameless:
        return 0
    if lack := find_lack_in(plan.python, torchrun_log(attempt, role)):
        raise lack
    raise TrainingError(
        "every rank under torchrun must end in order, and rank 0 must say how the run ended",
        seen=seen,
        where=torchrun_log(attempt, role).name,
    )
