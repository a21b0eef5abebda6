"""The agents of 256 nodes share a disk: their file operations below the run's folder, counted by Python's audit events.

The clock is a stand-in: a minute passes in a second.
"""

import os
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_rl.node import node_state
from slurm_rl.node.heartbeat import Heartbeat
from slurm_rl.node.node_state import NodeState
from slurm_rl.node.rank_discovery import NodeRole
from slurm_rl.node.rendezvous import HeadRecord, publish_head, wait_for_head
from slurm_rl.run_dir.run_dir import RunDir, write_json
from tests.plans import demo_plan

NUM_NODES, SECONDS = 256, 90
EVENTS = ("open", "os.listdir", "os.scandir", "os.rename", "os.remove")


class Disk:
    """Counts operations below a folder while it is watched; an audit hook cannot be removed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.counts, self.is_watched = str(folder), Counter[str](), False
        sys.addaudithook(self._note)

    def _note(self, event: str, args: tuple[object, ...]) -> None:
        if self.is_watched and event in EVENTS and str(args[0]).startswith(self.folder):
            self.counts[event] += 1


def test_agents_of_many_nodes_ask_disk_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, heartbeat = RunDir(tmp_path / "run"), Heartbeat(tmp_path / "beats", "rank-0")
    plan, attempt = replace(demo_plan(run), num_nodes=NUM_NODES), run.attempt(1)
    attempt.logs.mkdir(parents=True)
    for rank in range(NUM_NODES):
        write_json(attempt.node(rank), {"state": "running"})
    publish_head(attempt, HeadRecord("n0", "127.0.0.1", 1, os.getpid()))
    nodes = [NodeState(run, plan, attempt, NodeRole(rank, NUM_NODES, "7")) for rank in range(NUM_NODES)]
    disk, now, answers = Disk(run.path), time.monotonic(), True
    monkeypatch.setattr(node_state, "is_port_open", lambda host, port: answers)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for node in nodes:
        node._hangs.folder = tmp_path / "beats"
        node.meet_head(now)
    disk.is_watched = True
    for _ in range(SECONDS):
        now += 1.0
        heartbeat.beat()
        for node in nodes:
            node._hangs.check()
            assert node.role.is_head or not node.sees_head_end()
    disk.is_watched = False
    assert disk.counts.total() / SECONDS <= 50, disk.counts
    assert disk.counts["os.rename"] >= 2 * NUM_NODES, "each agent reports its heartbeats"

    write_json(attempt.node(0), {"state": "ended"})
    now, answers = now + 3.0, False
    assert all(node.sees_head_end() for node in nodes), "a closed port is a reason to look at once"


def test_agents_that_wait_for_head_list_folder_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = RunDir(tmp_path / "run").attempt(1)
    attempt.logs.mkdir(parents=True)
    disk, now = Disk(attempt.path), time.monotonic()

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now > began + 100 and not attempt.head.exists():
            publish_head(attempt, HeadRecord("n0", "127.0.0.1", 1, os.getpid()))

    began = now
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    disk.is_watched = True
    assert wait_for_head(attempt, now + 1000, lambda: False, NUM_NODES).host == "n0"
    disk.is_watched = False
    assert NUM_NODES * disk.counts["os.listdir"] / (now - began) <= 50, disk.counts
