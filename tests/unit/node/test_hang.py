"""Ranks that hang on two nodes: real processes and signals, the agents' part of two nodes in this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_rl.beats.pulse import BEATS
from slurm_rl.beats.stacks import Stack, describe_groups, group_stacks, name_suspects, parse_stack
from slurm_rl.errors import TrainingError
from slurm_rl.job.ends import read_end
from slurm_rl.jsonl import read_rows
from slurm_rl.node import hang
from slurm_rl.node.hang import HangWatch, read_beats, read_told
from slurm_rl.node.processes import mark_env
from slurm_rl.plan.job import JobPlan
from slurm_rl.plugins.health.evidence import find_bad, read_evidence
from slurm_rl.run_dir import RunDir, write_json
from tests.storage.writers import demo_plan

RANK = """
import sys, time
from slurm_rl.beats import pulse
pulse.start_pulse(sys.argv[1])
def all_reduce():
    time.sleep(600)
for number in range(6):
    with pulse.phase("train"):
        for _ in range(3):
            pulse.tick()
def load():
    while True:
        pulse.tick()
        time.sleep(0.02)
with pulse.phase("train"):
    all_reduce() if sys.argv[2] == "waits" else load()
"""


class Nodes:
    """Two nodes with two ranks each; `rank-3` is on the second one and gets on until it is stopped."""

    def __init__(self, folder: Path, how: str) -> None:
        self.run = RunDir(folder / "run")
        plan = demo_plan(self.run)
        limits = replace(plan.limits, hang_after_s=1.0)
        self.plan: JobPlan = replace(plan, num_nodes=2, limits=limits)
        self.attempt = self.run.attempt(1)
        self.attempt.logs.mkdir(parents=True)
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.watches = []
        for node in (0, 1):
            mark, beats = f"test:{os.getpid()}:{how}:{node}", folder / f"beats-of-n{node}"
            watch = HangWatch(self.run, self.plan, self.attempt, beats, rank=node, host=f"n{node}", mark=mark)
            self.watches.append(watch)
            for rank in (2 * node, 2 * node + 1):
                env = {**os.environ, **mark_env(mark), BEATS: str(beats)}
                argv = [sys.executable, "-c", RANK, f"rank-{rank}", "waits" if rank < 3 else "works"]
                self.children[f"rank-{rank}"] = subprocess.Popen(argv, env=env)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        give_up = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < give_up, what
            time.sleep(0.02)

    def close(self) -> None:
        for child in self.children.values():
            child.kill()
        for child in self.children.values():
            child.wait()


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    monkeypatch.setattr(hang, "LOOK_S", 0.05)
    monkeypatch.setattr(hang, "TELL_S", 0.05)
    made = Nodes(tmp_path, "stopped")
    yield made
    made.close()


def find_verdict(nodes: Nodes) -> TrainingError:
    """Both agents look, the second one in between the head's two: it answers while the head waits."""
    import threading

    found: list[TrainingError] = []

    def lead() -> None:
        while not found:
            try:
                nodes.watches[0].look()
            except TrainingError as error:
                found.append(error)
            time.sleep(0.02)

    head = threading.Thread(target=lead, daemon=True)
    head.start()

    def answers() -> bool:
        nodes.watches[1].look()
        return bool(found)

    nodes.wait_until(answers, "the verdict")
    head.join(timeout=60)
    return found[0]


def test_the_rank_that_does_not_answer_is_named_on_its_node(nodes: Nodes) -> None:
    nodes.wait_until(lambda: len(read_beats(nodes.watches[1].folder, time.monotonic())) == 2, "beats")
    nodes.wait_until(
        lambda: all(beat.num_calls >= 5 for beat in read_beats(nodes.watches[1].folder, time.monotonic())), "training"
    )
    os.kill(nodes.children["rank-3"].pid, signal.SIGSTOP)
    error = str(find_verdict(nodes))
    assert "suspect: rank-3 on n1, no stack, it is stopped (SIGSTOP)" in error
    assert "rank-0 on n0, rank-1 on n0, rank-2 on n1: in all_reduce" in error and "gloo" in error
    [event] = [row for row in read_rows(nodes.run.events) if row["kind"] == "rank/hung"]
    assert (event["rank"], event["node"], event["phase"]) == ("rank-3", "n1", "train")
    [evidence] = read_evidence(nodes.run)
    assert (evidence["node"], evidence["check"], evidence["strength"]) == ("n1", "hang", "soft")
    kept = {path.name for path in (nodes.attempt.logs / "stacks").iterdir()}
    assert kept == {"rank-0.txt", "rank-1.txt", "rank-2.txt"}
    # Whatever else the trainer and the agents left, this is how the attempt ended: the run goes on.
    write_json(nodes.attempt.node(0), {"host": "n0", "error": "something", "exit_code": 1})
    end = read_end(nodes.attempt, 1, asked=False)
    assert end.outcome == "lost" and "rank-3" in end.cause


def test_ranks_that_get_on_are_left_alone_and_told_of(nodes: Nodes) -> None:
    """With the deadline that a user has: none of them is late."""
    watch = nodes.watches[1]
    watch.plan = replace(watch.plan, limits=replace(watch.plan.limits, hang_after_s=600.0))
    nodes.wait_until(lambda: len(read_beats(watch.folder, time.monotonic())) == 2, "beats")
    watch.look()
    [told] = read_told(nodes.attempt)
    assert (told["host"], told["late"]) == ("n1", [])
    assert [beat["name"] for beat in told["beats"]] == ["rank-2", "rank-3"]
    assert not nodes.attempt.dump.exists() and read_rows(nodes.run.events) == []


SLOW_RANK = """
import sys, time
from slurm_rl.beats import pulse
pulse.start_pulse(sys.argv[1])
while True:
    with pulse.phase("train"):
        start = time.perf_counter()
        time.sleep(float(sys.argv[2]))
        pulse.note_speed(time.perf_counter() - start, 1000)
"""


def test_a_slow_rank_is_named_once_with_its_node_and_two_attempts_keep_the_node_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three ranks on two nodes, one of them with a sleep in its step."""
    monkeypatch.setattr(hang, "LOOK_S", 0.05)
    monkeypatch.setattr(hang, "TELL_S", 0.05)
    run = RunDir(tmp_path / "run")
    plan = replace(demo_plan(run), num_nodes=2)
    for number in (1, 2):
        attempt = run.attempt(number)
        attempt.logs.mkdir(parents=True)
        children, watches = [], []
        for node, ranks in ((0, (0, 1)), (1, (2,))):
            folder = tmp_path / f"beats-{number}-{node}"
            watches.append(HangWatch(run, plan, attempt, folder, rank=node, host=f"n{node}", mark="none"))
            for rank in ranks:
                argv = [sys.executable, "-c", SLOW_RANK, f"rank-{rank}", "0.2" if rank == 2 else "0.02"]
                children.append(subprocess.Popen(argv, env={**os.environ, BEATS: str(folder)}))
        try:
            give_up = time.monotonic() + 300
            while len([row for row in read_rows(run.events) if row["kind"] == "rank/straggling"]) < number:
                assert time.monotonic() < give_up, "nobody was named"
                for watch in reversed(watches):
                    watch.look()
                time.sleep(0.02)
            for watch in watches:
                watch.look()
        finally:
            for child in children:
                child.kill()
                child.wait()
        events = [row for row in read_rows(run.events) if row["kind"] == "rank/straggling"]
        assert [(row["attempt"], row["rank"], row["node"]) for row in events] == [
            (one, "rank-2", "n1") for one in range(1, number + 1)
        ]
        assert events[-1]["score"] < 0.75
        # Once may be chance; who is slow in a second attempt is left out of the next.
        assert list(find_bad(read_evidence(run), time.time())) == (["n1"] if number == 2 else [])


def stack(name: str, *frames: str, state: str = "S") -> Stack:
    return Stack(name, f"n{name[-1]}", frames, state)


def test_the_smaller_group_is_suspected_and_equal_ones_by_who_waits() -> None:
    waits = [stack(f"rank-{n}", "all_reduce (c10d.py)", "train (policy.py)") for n in range(3)]
    reads = stack("rank-3", "read (loader.py)", "train (policy.py)")
    assert name_suspects(group_stacks([*waits, reads])) == [reads]
    assert name_suspects(group_stacks([waits[0], reads])) == [reads]
    assert name_suspects(group_stacks(waits)) == []
    assert "look at the network" in describe_groups(group_stacks(waits), [])
    busy = [stack("rank-4", "a (x.py)"), stack("rank-5", "b (x.py)")]
    assert name_suspects(group_stacks(busy)) == [], "two that both work at something: nothing tells them apart"
    assert name_suspects(group_stacks([])) == []
    gone = stack("rank-6", state="")
    assert name_suspects(group_stacks([*waits, reads, gone])) == [gone]
    assert "it is gone" in describe_groups([[gone]], [gone])


def test_the_main_thread_is_the_last_of_a_dump() -> None:
    text = (
        'Thread 0x00007f7c806706c0 (most recent call first):\n  File "/a/pool.py", line 3 in wait\n\n'
        'Current thread 0x00007f7c813d3b80 (most recent call first):\n  File "/b/main.py", line 6 in train\n'
        '  File "/b/main.py", line 7 in <module>\n'
    )
    assert parse_stack(text) == ("train (main.py)", "<module> (main.py)")
    assert parse_stack(text + text) == parse_stack(text), "the newest of two dumps"
    assert parse_stack("") == parse_stack("garbage\n") == ()
