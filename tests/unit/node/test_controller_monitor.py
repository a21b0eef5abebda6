import os
import socket
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.cli.status import render_status
from slurm_rl.launch.controller.record import RunState, record_job
from slurm_rl.node.node_state import SILENCE_S, ControllerMonitor
from slurm_rl.node.rank_discovery import NodeRole
from slurm_rl.node.rendezvous import HeadRecord, publish_head
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir, append_event, write_json
from slurm_rl.run_dir.run_lock import BEAT_S, LockHolder
from tests.plans import demo_plan

HOLDER = LockHolder("slurm", "7", 0, "n1", "", 9, 9)


class Scene:
    """Node 2 of three, a controller on n1 with heartbeats on request, and a head that may accept connections."""

    def __init__(self, folder: Path, rank: int = 2) -> None:
        self.run = RunDir(folder / "run")
        demo_plan(self.run)
        self.attempt = self.run.attempt(1)
        self.attempt.logs.mkdir(parents=True)
        self.run.lease.mkdir(parents=True)
        write_json(self.run.lease / "1.json", vars(HOLDER))
        self.server = socket.create_server(("127.0.0.1", 0))
        publish_head(self.attempt, HeadRecord("n1", *self.server.getsockname(), pid=9))
        self.monitor = ControllerMonitor(self.run, self.attempt, NodeRole(rank, 3, "7"))
        self.beats = 0

    def beat(self) -> None:
        self.beats += 1
        os.utime(self.run.lease / "1.json", (self.beats, self.beats))

    def events(self) -> list[dict[str, Any]]:
        rows = read_rows(self.run.events) if self.run.events.is_file() else []
        return [row for row in rows if row["kind"].startswith("controller/")]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_controller_monitor_reports_lost_node_once_and_its_recovery(scene: Scene) -> None:
    scene.beat()
    scene.monitor.check(100.0)
    scene.server.close()
    seconds = 0
    while not scene.events():
        seconds += 1
        scene.monitor.check(100.0 + seconds)
    # The rest of the promised 20 s is for a connection without an answer.
    assert BEAT_S < seconds <= SILENCE_S + 2
    scene.monitor.check(200.0)
    [row] = scene.events()
    assert (row["kind"], row["host"], row["attempt"]) == ("controller/silent", "n1", 1)
    scene.beat()
    for moment in (210.0, 230.0):
        scene.monitor.check(moment)
    assert [row["kind"] for row in scene.events()] == ["controller/silent", "controller/recovered", "controller/silent"]


@pytest.mark.parametrize("case", ["heartbeats", "head listens", "controller ended", "rank 0", "rank 1"])
def test_controller_monitor_without_loss_reports_nothing(tmp_path: Path, case: str) -> None:
    """Only the last of three nodes monitors."""
    scene = Scene(tmp_path, rank=int(case[-1]) if case.startswith("rank") else 2)
    if case != "head listens":
        scene.server.close()
    if case == "controller ended":
        (scene.run.lease / "1.ended").touch()
    for seconds in range(0, 100, 5):
        if case == "heartbeats":
            scene.beat()
        scene.monitor.check(100.0 + seconds)
    assert scene.events() == []


def test_status_names_silent_controller(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    record_job(scene.run, "slurm", "7")
    monkeypatch.setattr("slurm_rl.cli.status.read_states", lambda runs: [RunState("running", is_alive=True)])
    append_event(scene.run, "attempt/started", attempt=1)
    append_event(scene.run, "controller/silent", attempt=1, host="n1", seconds=15.2)
    assert "silent  n1, the controller's node" in render_status(scene.run)
    append_event(scene.run, "attempt/started", attempt=2)
    assert "the controller's node" not in render_status(scene.run)
