"""A stopped and a slow rank are named, and the run continues, with real torchrun and torch on CPU."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_rl.node.hang_monitor import read_node_reports
from slurm_rl.plugins.health.evidence import read_evidence
from slurm_rl.run_dir.run_dir import RunDir, read_json
from tests.train.test_sft_run import WORDS
from tests.whole_run import events_of, start_run, wait_for

pytestmark = pytest.mark.slow

# Steps take milliseconds here.
SOON = ("job.heartbeat_timeout_s=4", "job.max_failures=0")


def pid_of(run: RunDir, name: str) -> int:
    """Return the pid of a rank that has finished enough calls to have a deadline."""
    found = [0]

    def has_trained() -> bool:
        for report in read_node_reports(run.attempt(1)):
            for beat in report["beats"]:
                if beat["name"] == name and beat["num_calls"] >= 5 and beat["phase"] == "train":
                    found[0] = beat["pid"]
        return found[0] > 0

    wait_for(has_trained, f"{name} to train")
    return found[0]


def test_stopped_rank_is_named_and_run_continues(tmp_path: Path) -> None:
    """No failures are allowed, so only a hang can start another attempt."""
    run = RunDir(tmp_path / "hung")
    process = start_run(run.path, base=(*WORDS, *SOON, "supervised.num_epochs=1000"))
    os.kill(pid_of(run, "rank-1"), signal.SIGSTOP)
    wait_for(lambda: bool(events_of(run.path, "rank/hung")), "the verdict")
    [hung] = events_of(run.path, "rank/hung")
    assert hung["rank"] == "rank-1" and hung["phase"] in ("train", "step"), hung
    assert "suspect: rank-1" in hung["verdict"] and "stopped (SIGSTOP)" in hung["verdict"]
    assert "rank-0" in hung["verdict"]
    stacks = run.attempt(1).logs / "stacks"
    assert "most recent call first" in (stacks / "rank-0.txt").read_text() and not (stacks / "rank-1.txt").exists()
    wait_for(lambda: len(events_of(run.path, "trainer/started")) == 2, "a new attempt")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    end = read_json(run.attempt(1).end)
    assert end["outcome"] == "lost" and "rank-1" in end["cause"]


@contextmanager
def throttled(pid: int, *, runs_s: float = 0.01, stops_s: float = 0.09) -> Iterator[None]:
    """Give the process a tenth of its core."""
    done = threading.Event()

    def throttle() -> None:
        while not done.is_set():
            for signum, seconds in ((signal.SIGSTOP, stops_s), (signal.SIGCONT, runs_s)):
                try:
                    os.kill(pid, signum)
                except ProcessLookupError:
                    return
                time.sleep(seconds)

    thread = threading.Thread(target=throttle)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_throttled_rank_is_named_with_sharded_parameters(tmp_path: Path) -> None:
    """With FSDP2 each pass waits for both ranks, so their passes take the same time."""
    run = RunDir(tmp_path / "slow")
    process = start_run(run.path, base=(*WORDS, "supervised.num_epochs=1000", "job.max_failures=0"))

    def named() -> list[dict[str, object]]:
        return [row for row in events_of(run.path, "rank/straggling") if row["rank"] == "rank-1"]

    with throttled(pid_of(run, "rank-1")):
        wait_for(lambda: bool(named()), "the straggler")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    [slow] = named()
    assert slow["score"] < 0.75 and slow["attempt"] == 1  # type: ignore[operator]
    assert read_evidence(run) == [], "a single node has no peers"
