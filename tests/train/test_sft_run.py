"""SFT from the command line with two local torchrun ranks: killed, interrupted, resumed, stopped and slowed down.

Other tests in `make test`: ranks killed on Slurm, tests/slurm/test_faults_cluster.py; a stop in a rank,
test_supervised.py; Ctrl-C, tests/slurm/test_ends.py.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_rl.node.hang_monitor import read_node_reports
from slurm_rl.node.processes import attempt_mark, find_marked
from slurm_rl.plugins.health.evidence import read_evidence
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir, read_json
from tests.whole_run import events_of, exact_rows, finish, stage_rows, start_run, train, wait_for

pytestmark = pytest.mark.slow

WORDS = (
    "+exp=sft_tiny",
    "policy.num_workers=2",
    "data.largest_addend=9",
    "data.num_eval=20",
    # 80 steps, so that a signal after the first save arrives before the end.
    "supervised.batch_size=8",
    "supervised.num_epochs=8",
    "checkpoint.interval=5",
    "eval.interval=50",
    "job.max_failures=1",
    "logging.wandb.mode=disabled",
)


def has_saved(run: RunDir, attempt: int) -> bool:
    """Return whether the attempt has trained and saved a checkpoint."""
    events = read_rows(run.events)
    starts = [at for at, row in enumerate(events) if row["kind"] == "trainer/started"]
    return len(starts) >= attempt and any(row["kind"] == "checkpoint/saved" for row in events[starts[attempt - 1] :])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(folder, base=WORDS)
    return folder


def test_ranks_that_share_rows_learn_the_same(whole: Path, tmp_path: Path) -> None:
    train(tmp_path / "shared", base=(*WORDS, "policy.context_parallel=2"))
    ours, other = (stage_rows(run, "sft") for run in (tmp_path / "shared", whole))
    assert len(ours) == len(other) == 80
    for one, two in zip(ours[:20], other[:20], strict=True):
        for key in ("policy/loss", "policy/grad_norm", "tokens/trained"):
            assert one[key] == pytest.approx(two[key], rel=1e-3)


def test_interrupted_sft_has_identical_metrics(whole: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "interrupted")
    process = start_run(run.path, base=WORDS)
    wait_for(lambda: has_saved(run, 1), "the first attempt to save")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert read_json(run.attempt(1).outcome)["outcome"] == "checkpointed"
    finish(start_run(run.path, verb="resume"))
    require_equal(run.path, whole)


def test_sft_with_killed_agent_retries_with_identical_metrics(whole: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "killed")
    process = start_run(run.path, base=WORDS)
    wait_for(lambda: has_saved(run, 1), "the first attempt to save")
    key = read_json(run.attempt(1).start)["job"]
    mark = attempt_mark(run, key, 1, 0)
    assert len(find_marked(mark)) >= 3, "torchrun and its two ranks"
    os.kill(read_json(run.attempt(1).node(0))["pid"], signal.SIGKILL)
    wait_for(lambda: find_marked(mark) == [], "the ranks to die with torchrun, and torchrun with its agent")
    finish(process)
    require_equal(run.path, whole)


def require_equal(harmed: Path, whole: Path) -> None:
    assert not (harmed / "secrets").exists(), "there is no Ray, so there is no token"
    assert exact_rows(harmed) == exact_rows(whole)
    exported = [(folder / "export" / "model.safetensors").read_bytes() for folder in (harmed, whole)]
    assert exported[0] == exported[1]


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
