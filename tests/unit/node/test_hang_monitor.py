"""Hanging and slow ranks of two nodes, with real processes and signals."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_rl.errors import TrainingError
from slurm_rl.launch.controller.ends import read_end
from slurm_rl.node import hang_monitor
from slurm_rl.node.hang_monitor import HangMonitor, read_node_reports
from slurm_rl.node.heartbeat import HEARTBEATS
from slurm_rl.node.processes import mark_env
from slurm_rl.node.stall_detector import Stack, compare_stacks, parse_stack, read_beats
from slurm_rl.plugins.health.evidence import find_bad, read_evidence
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir, write_json
from tests.plans import demo_plan
from tests.slurm.cluster.waiting import wait_until

# After a few fast calls, the rank waits, or works until it is stopped.
RANK = """
import sys, time
from slurm_rl.node import heartbeat
heartbeat.start_heartbeat(sys.argv[1])
def all_reduce():
    time.sleep(600)
def load():
    while True:
        heartbeat.beat()
        time.sleep(0.02)
for number in range(6):
    with heartbeat.phase("train"):
        heartbeat.beat()
with heartbeat.phase("train"):
    all_reduce() if sys.argv[2] == "waits" else load()
"""
SLOW_RANK = """
import sys, time
from slurm_rl.node import heartbeat
heartbeat.start_heartbeat(sys.argv[1])
while True:
    with heartbeat.phase("train"):
        start = time.perf_counter()
        time.sleep(float(sys.argv[2]))
        heartbeat.note_speed(time.perf_counter() - start, 1000)
"""


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_monitor, "CHECK_S", 0.05)
    monkeypatch.setattr(hang_monitor, "REPORT_S", 0.05)


class Nodes:
    """Two nodes with ranks as processes of this test."""

    def __init__(self, folder: Path, number: int = 1, heartbeat_timeout_s: float = 1.0) -> None:
        self.folder, self.run = folder, RunDir(folder / "run")
        plan = demo_plan(self.run)
        self.plan = replace(plan, num_nodes=2, limits=replace(plan.limits, heartbeat_timeout_s=heartbeat_timeout_s))
        self.attempt = self.run.attempt(number)
        self.attempt.logs.mkdir(parents=True)
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.marks = [f"test:{os.getpid()}:{number}:{node}" for node in (0, 1)]
        self.monitors = [self._monitor(node) for node in (0, 1)]

    def _monitor(self, node: int) -> HangMonitor:
        folder = self.folder / f"heartbeats-{self.attempt.number}-{node}"
        names = {"rank": node, "host": f"n{node}", "mark": self.marks[node]}
        return HangMonitor(self.run, self.plan, self.attempt, folder, **names)  # type: ignore[arg-type]

    @contextmanager
    def ranks(self, code: str, arguments: dict[str, tuple[int, str]]) -> Iterator[None]:
        with ExitStack() as stack:
            for name, (node, argument) in arguments.items():
                env = {**os.environ, **mark_env(self.marks[node]), HEARTBEATS: str(self.monitors[node].folder)}
                child = subprocess.Popen([sys.executable, "-c", code, name, argument], env=env)
                self.children[name] = stack.enter_context(child)
                stack.callback(child.kill)
            yield

    def beats(self, node: int) -> int:
        """Return how many ranks of the node have their own deadline."""
        return sum(beat.num_calls >= 5 for beat in read_beats(self.monitors[node].folder, time.monotonic()))

    def events(self, kind: str) -> list[dict[str, object]]:
        return [row for row in read_rows(self.run.events) if row["kind"] == kind]


FOUR = {"rank-0": (0, "waits"), "rank-1": (0, "waits"), "rank-2": (1, "waits"), "rank-3": (1, "works")}


def find_verdict(nodes: Nodes) -> TrainingError:
    """Run both agents: the second one answers while the head waits."""

    def lead() -> TrainingError:
        while True:
            try:
                nodes.monitors[0].check()
            except TrainingError as error:
                return error
            time.sleep(0.02)

    with ThreadPoolExecutor(1) as pool:
        head = pool.submit(lead)
        while not head.done():
            nodes.monitors[1].check()
            time.sleep(0.02)
        return head.result()


def test_hang_monitor_names_stopped_rank(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    with nodes.ranks(RANK, FOUR):
        wait_until(lambda: nodes.beats(1) == 2, "training")
        os.kill(nodes.children["rank-3"].pid, signal.SIGSTOP)
        error = str(find_verdict(nodes))
    assert "suspect: rank-3 on n1, no stack, it is stopped (SIGSTOP)" in error
    assert "rank-0 on n0, rank-1 on n0, rank-2 on n1: in all_reduce" in error
    [event] = nodes.events("rank/hung")
    assert (event["rank"], event["node"], event["phase"]) == ("rank-3", "n1", "train")
    [evidence] = read_evidence(nodes.run)
    assert (evidence["node"], evidence["check"], evidence["strength"]) == ("n1", "hang", "soft")
    kept = {path.name for path in (nodes.attempt.logs / "stacks").iterdir()}
    assert kept == {"rank-0.txt", "rank-1.txt", "rank-2.txt"}
    # The hang is the cause, whatever else the trainer and the agents wrote.
    write_json(nodes.attempt.node(0), {"host": "n0", "error": "something", "exit_code": 1})
    end = read_end(nodes.attempt, 1, asked=False)
    assert end.outcome == "lost" and "rank-3" in end.cause


def test_hang_monitor_reports_ranks_before_their_deadline(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, heartbeat_timeout_s=600.0)
    with nodes.ranks(RANK, FOUR):
        wait_until(lambda: len(read_beats(nodes.monitors[1].folder, time.monotonic())) == 2, "heartbeats")
        nodes.monitors[1].check()
    [report] = read_node_reports(nodes.attempt)
    assert (report["host"], report["late"]) == ("n1", [])
    assert [beat["name"] for beat in report["beats"]] == ["rank-2", "rank-3"]
    assert not list(nodes.attempt.path.glob("*stacks*")) and read_rows(nodes.run.events) == []


def test_hang_monitor_names_straggler_once_per_attempt(tmp_path: Path) -> None:
    three = {"rank-0": (0, "0.02"), "rank-1": (0, "0.02"), "rank-2": (1, "0.2")}
    for number in (1, 2):
        nodes = Nodes(tmp_path, number, heartbeat_timeout_s=600.0)

        def is_named(nodes: Nodes = nodes, number: int = number) -> bool:
            for monitor in reversed(nodes.monitors):
                monitor.check()
            return len(nodes.events("rank/straggling")) >= number

        with nodes.ranks(SLOW_RANK, three):
            wait_until(is_named, "the straggler")
            is_named()
        events = nodes.events("rank/straggling")
        assert [(row["attempt"], row["rank"], row["node"]) for row in events] == [
            (attempt, "rank-2", "n1") for attempt in range(1, number + 1)
        ]
        assert events[-1]["score"] < 0.75  # type: ignore[operator]
        # Once may be chance; the second attempt excludes the node.
        assert list(find_bad(read_evidence(nodes.run), time.time())) == (["n1"] if number == 2 else [])


def stack(name: str, *frames: str, state: str = "S") -> Stack:
    return Stack(name, f"n{name[-1]}", frames, state)


WAITS = [stack(f"rank-{n}", "all_reduce (c10d.py)", "train (policy.py)") for n in range(3)]
READS, ENDED = stack("rank-3", "read (loader.py)", "train (policy.py)"), stack("rank-6", state="")
NETWORK = "check the network"


@pytest.mark.parametrize(
    ("stacks", "suspects", "words"),
    [
        ([*WAITS, READS], [READS], "suspect: rank-3 on n3, in read (loader.py) < train (policy.py); rank-0 on n0"),
        ([WAITS[0], READS], [READS], "rank-0 on n0: in all_reduce"),
        (WAITS, [], NETWORK),
        ([stack("rank-4", "a (x.py)"), stack("rank-5", "b (x.py)")], [], NETWORK),  # both work
        ([*WAITS, READS, ENDED], [ENDED], "suspect: rank-6 on n6, no stack, it has ended; rank-0 on n0"),
        ([], [], NETWORK),
    ],
)
def test_compare_stacks_suspects_silent_then_small_groups(
    stacks: list[Stack], suspects: list[Stack], words: str
) -> None:
    found, verdict = compare_stacks(stacks)
    assert found == suspects and words in verdict


def test_parse_stack_returns_last_main_thread() -> None:
    text = (
        'Thread 0x00007f7c806706c0 (most recent call first):\n  File "/a/pool.py", line 3 in wait\n\n'
        'Current thread 0x00007f7c813d3b80 (most recent call first):\n  File "/b/main.py", line 6 in train\n'
        '  File "/b/main.py", line 7 in <module>\n'
    )
    assert parse_stack(text) == parse_stack(text + text) == ["train (main.py)", "<module> (main.py)"]
    assert parse_stack("") == parse_stack("garbage\n") == []
