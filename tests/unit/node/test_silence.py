"""The last node of an attempt says that the controller's is gone: both its beat and its head, and nothing less."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.cli.status import render_status
from slurm_rl.launch.controller.record import RunState, record_job
from slurm_rl.node.discovery import NodeRole
from slurm_rl.node.rendezvous import HeadRecord, publish_head
from slurm_rl.node.silence import SILENCE_S, ControllerWatch
from slurm_rl.run_dir.holder import Holder
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.lease import BEAT_S
from slurm_rl.run_dir.run_dir import RunDir, append_event, write_json
from tests.storage.writers import demo_plan

HOLDER = Holder("slurm", "7", 0, "n1", "", 9, 9)


class Scene:
    """Node 2 of three, a controller on n1 that beats when told to, and a head that may listen."""

    def __init__(self, folder: Path, rank: int = 2) -> None:
        self.run = RunDir(folder / "run")
        demo_plan(self.run)
        self.attempt = self.run.attempt(1)
        self.attempt.logs.mkdir(parents=True)
        self.run.lease.mkdir(parents=True)
        write_json(self.run.lease / "1.json", vars(HOLDER))
        self.server = socket.create_server(("127.0.0.1", 0))
        publish_head(self.attempt, HeadRecord("n1", *self.server.getsockname(), pid=9))
        self.watch = ControllerWatch(self.run, self.attempt, NodeRole(rank, 3, "7"))
        self.beats = 0

    def beat(self) -> None:
        self.beats += 1
        os.utime(self.run.lease / "1.json", (self.beats, self.beats))

    def told(self) -> list[dict[str, Any]]:
        rows = read_rows(self.run.events) if self.run.events.is_file() else []
        return [row for row in rows if row["kind"].startswith("controller/")]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_lost_node_is_told_once_in_time(scene: Scene) -> None:
    scene.beat()
    scene.watch.look(100.0)
    scene.server.close()
    seconds = 0
    while not scene.told():
        seconds += 1
        scene.watch.look(100.0 + seconds)
    # Of the 20 s that are promised the rest is for a connection that nobody refuses.
    assert BEAT_S < seconds <= SILENCE_S + 2
    scene.watch.look(200.0)
    [row] = scene.told()
    assert (row["kind"], row["host"], row["attempt"]) == ("controller/silent", "n1", 1)


def test_a_controller_that_beats_is_not_silent(scene: Scene) -> None:
    scene.server.close()
    for seconds in range(0, 100, 5):
        scene.beat()
        scene.watch.look(100.0 + seconds)
    assert scene.told() == []


def test_a_head_that_listens_is_there_though_nothing_beats(scene: Scene) -> None:
    for seconds in range(100):
        scene.watch.look(100.0 + seconds)
    assert scene.told() == []


def test_one_that_comes_back_is_told_and_may_be_silent_again(scene: Scene) -> None:
    scene.server.close()
    for moment in (100.0, 120.0):
        scene.watch.look(moment)
    scene.beat()
    for moment in (130.0, 150.0):
        scene.watch.look(moment)
    assert [row["kind"] for row in scene.told()] == ["controller/silent", "controller/heard", "controller/silent"]


def test_a_controller_that_has_ended_is_not_silent(scene: Scene) -> None:
    scene.server.close()
    (scene.run.lease / "1.ended").touch()
    for seconds in range(100):
        scene.watch.look(100.0 + seconds)
    assert scene.told() == []


@pytest.mark.parametrize("rank", [0, 1])
def test_one_agent_looks_for_all(tmp_path: Path, rank: int) -> None:
    scene = Scene(tmp_path, rank)
    scene.server.close()
    for seconds in range(100):
        scene.watch.look(100.0 + seconds)
    assert scene.told() == []


def test_status_says_whom_it_waits_for(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    record_job(scene.run, "slurm", "7")
    monkeypatch.setattr("slurm_rl.cli.status.read_states", lambda runs: [RunState("running", is_alive=True)])
    append_event(scene.run, "attempt/started", attempt=1)
    append_event(scene.run, "controller/silent", attempt=1, host="n1", seconds=15.2)
    assert "silent  n1, the controller's node" in render_status(scene.run)
    append_event(scene.run, "attempt/started", attempt=2)
    assert "the controller's node" not in render_status(scene.run)
