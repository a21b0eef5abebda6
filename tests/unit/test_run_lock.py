"""A run has one controller: taking over the lock, waiting for it, and no writes after its loss."""

import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.job import LoggingConfig
from slurm_rl.errors import CheckpointError, LeaseError
from slurm_rl.models.checkpoint.store import CheckpointStore
from slurm_rl.run_dir import jsonl
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir, append_event, append_row, write_json, write_last
from slurm_rl.run_dir.run_lock import RESUME, LockHolder, LockState, RunLock, Verdict, acquire, decide, read_lock
from slurm_rl.trainers.common.metrics_log import MetricsLogger
from tests.other_host import start_on_other_host

QUICK: dict[str, Any] = {"beat_s": 0.05, "silence_s": 0.6, "look_s": 0.05}
ME = LockHolder.of_this_process("slurm", "7")
GONE = replace(ME, job="6", started=ME.started + 1)
"""A process of this machine with a reused number."""
FAR = replace(ME, job="6", machine="another", host="n2")


def put(folder: Path, holder: LockHolder, epoch: int = 1) -> Path:
    """Write a lock of a holder without heartbeat."""
    path = folder / f"{epoch}.json"
    write_json(path, vars(holder))
    return path


@pytest.mark.parametrize(
    ("holder", "own", "is_known_alive", "verdict"),
    [
        (replace(FAR, job="7"), replace(ME, restart=1), True, "take"),
        (replace(FAR, job="7", restart=2), replace(ME, restart=1), False, "refuse"),
        (replace(FAR, job="7"), ME, True, "watch"),
        (FAR, ME, True, "refuse"),
        (FAR, ME, False, "watch"),
        (replace(ME, job="6"), ME, False, "refuse"),
        (GONE, ME, True, "take"),
        (replace(GONE, job="7"), ME, True, "take"),
        (replace(FAR, machine=""), replace(ME, machine=""), False, "watch"),
        (replace(ME, launcher=RESUME), ME, False, "wait"),
        (replace(ME, launcher=RESUME), replace(ME, launcher=RESUME, job="8"), False, "refuse"),
    ],
)
def test_decide_by_holder_returns_verdict(
    holder: LockHolder, own: LockHolder, is_known_alive: bool, verdict: Verdict
) -> None:
    assert decide(LockState(1, holder, False, 0), own, lambda _: is_known_alive) == verdict
    assert decide(LockState(1, holder, True, 0), own, lambda _: is_known_alive) == "take"


def test_active_holder_is_named_with_next_command(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "a run")
    put(run.lease, replace(ME, launcher="local", job="77"))
    with pytest.raises(LeaseError) as refused:
        acquire(run.lease, ME)
    assert f"local job 77 (process {os.getpid()} on {ME.host}) has {run.path}" in str(refused.value)
    assert f"end it first: python -m slurm_rl cancel '{run.path}'" in str(refused.value)


@pytest.mark.parametrize("ahead_s", [-86400, 0, 86400])
def test_silent_remote_holder_is_dead_despite_its_clock(
    tmp_path: Path, ahead_s: float, capfd: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path / "lease", FAR)
    os.utime(path, (time.time() + ahead_s, time.time() + ahead_s))
    with acquire(tmp_path / "lease", ME, **QUICK) as lease:
        assert lease.epoch == 2
    said = capfd.readouterr().err
    assert said == (
        f"slurm_rl: slurm job 6 (process {ME.pid} on n2) did not give the run up; looking for 0.6 s whether it lives\n"
    )


@pytest.mark.parametrize("per_beat_s", [-3600, 3600])
def test_active_remote_holder_is_alive_despite_its_clock(tmp_path: Path, per_beat_s: float) -> None:
    path = put(tmp_path / "lease", FAR)
    is_over = threading.Event()

    def beat() -> None:
        at = time.time()
        while not is_over.wait(0.1):
            at += per_beat_s
            os.utime(path, (at, at))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(LeaseError, match="on n2"):
            acquire(tmp_path / "lease", ME, beat_s=1.0, silence_s=60.0, look_s=0.05)
    finally:
        is_over.set()
        thread.join()


def test_stopped_reader_ignores_its_own_pause(tmp_path: Path) -> None:
    path = put(tmp_path / "lease", FAR)
    looks = 0

    def asked(_: LockHolder) -> bool:
        nonlocal looks
        looks += 1
        if looks == 3:
            time.sleep(QUICK["silence_s"])
        if looks == 5:
            os.utime(path, (1, 1))
        return False

    with pytest.raises(LeaseError):
        acquire(tmp_path / "lease", ME, asked, **QUICK)


HOLD = """
import sys, time
from slurm_rl.run_dir.run_lock import LockHolder
from slurm_rl.run_dir.run_lock import acquire
from slurm_rl.run_dir.run_dir import RunDir, append_row
run = RunDir(sys.argv[1])
with acquire(run.lease, LockHolder.of_this_process("local", "1"), beat_s=0.05) as lease:
    run.epoch = lease.epoch
    print("holds", lease.epoch, flush=True)
    number = 0
    while True:
        number += 1
        append_row(run, run.metrics, {"step": number, "by": lease.epoch})
        time.sleep(0.01)
"""


@pytest.fixture
def other_host(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Return a process on another host that holds the run in tmp_path and writes rows."""
    process = start_on_other_host("elsewhere", HOLD, str(tmp_path))
    assert process.stdout is not None
    assert process.stdout.readline() == "holds 1\n"
    yield process
    process.kill()
    process.communicate()


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def test_remote_controller_is_succeeded_only_after_kill(tmp_path: Path, other_host: subprocess.Popen[str]) -> None:
    run = RunDir(tmp_path)
    with pytest.raises(LeaseError, match=r"on elsewhere\) has .*Next: .*end it first: python -m slurm_rl cancel"):
        acquire(run.lease, ME, **QUICK)
    os.kill(child_of(other_host.pid), signal.SIGKILL)
    with acquire(run.lease, ME, **QUICK) as lease:
        assert lease.epoch == 2


def test_resumed_controller_writes_nothing_after_takeover(tmp_path: Path, other_host: subprocess.Popen[str]) -> None:
    run = RunDir(tmp_path)
    stopped = child_of(other_host.pid)
    os.kill(stopped, signal.SIGSTOP)
    with acquire(run.lease, ME, **QUICK) as lease:
        assert lease.epoch == 2
        rows = read_rows(run.metrics)
        os.kill(stopped, signal.SIGCONT)
        said, _ = other_host.communicate(timeout=60)
    # Only the row in progress at the stop can still be written.
    assert len(read_rows(run.metrics)) <= len(rows) + 1
    assert "another controller owns the run now, so this one stops writing; got slurm job 7" in said
    assert other_host.returncode


def test_former_holder_writes_nothing_that_counts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = RunDir(tmp_path)
    with acquire(run.lease, ME) as lease:
        run.epoch = lease.epoch
        store = CheckpointStore(run.checkpoints, run.require_ours)
        for step in (1, 2):
            store.begin(step)
            store.commit(step, {})
        (store.begin(3) / "x").write_text("x")
        metrics = MetricsLogger(run, LoggingConfig(), "light", {})
        metrics.log(1, "grpo", {})
        append_event(run, "a/b")
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        put(run.lease, FAR, 2)
        acts: list[Callable[[], object]] = [
            lambda: store.commit(3, {}),
            lambda: store.prune(1),
            lambda: store.begin(4),
            lambda: metrics.log(2, "grpo", {}),
            lambda: metrics.rewind(0),
            lambda: append_row(run, run.samples, {"step": 2}),
        ]
        for act in acts:
            with pytest.raises(LeaseError, match="slurm job 6"):
                act()
        append_event(run, "a/b")
        assert not write_last(run, run.end, {"state": "failed"})
        metrics.close()
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    grown = {path for path in after if before.get(path) != after[path]}
    counting = {path for path in grown if not any(part.startswith(".step-3") for part in path.parts)}
    assert {path.relative_to(tmp_path).parts[0] for path in counting} <= {"lease", "tensorboard"}
    assert sorted(path.name for path in run.checkpoints.glob("step-*")) == ["step-1", "step-2"]
    assert capfd.readouterr().err.count("another controller owns the run now") == 2


def test_removed_checkpoint_does_not_reappear(tmp_path: Path) -> None:
    """The process has checked the lock, and is stopped right before the rename."""
    late, next_one = CheckpointStore(tmp_path), CheckpointStore(tmp_path)
    (late.begin(5) / "x").write_text("late")
    (next_one.begin(5) / "x").write_text("next")
    with pytest.raises(CheckpointError, match="no begun folder of step 5"):
        late.commit(5, {})
    assert (next_one.commit(5, {}).path / "x").read_text() == "next"


def test_concurrent_takers_get_different_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interleave at every file operation of one taker all operations of the other."""
    calls, at, folder, won = 0, 0, tmp_path, list[tuple[str, RunLock]]()

    def try_it(job: str) -> None:
        own = replace(FAR, job=job, machine=job)
        won.append((job, acquire(folder, own, beat_s=1e6, silence_s=0.0)))

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                try_it("second")
            return operation(*args, **kwargs)

        return call

    operations = ((os, "link"), (os, "utime"), (os, "fsync"), (Path, "iterdir"), (Path, "unlink"), (Path, "stat"))
    for owner, name in operations:
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    for number in range(1, 50):
        at, folder = 0, tmp_path / str(number)
        put(folder, replace(FAR, machine="dead"))
        calls, at = 0, number
        won.clear()
        try_it("first")
        at = 0
        for _, lease in won:
            lease.__exit__(None, None, None)
        standing = read_lock(folder)
        assert standing.holder is not None
        assert sorted(lease.epoch for _, lease in won) == list(range(2, standing.epoch + 1))
        # All but the newest have lost the run, and will notice.
        assert {lease.epoch: job for job, lease in won}[standing.epoch] == standing.holder.job
        if len(won) == 1:
            break
    assert 5 < number < 49


def test_file_system_without_locks_or_links_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(jsonl.fcntl, "lockf", refuse)
    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(jsonl, "_is_told", False)
    run = RunDir(tmp_path)
    with acquire(run.lease, ME) as lease:
        run.epoch = lease.epoch
        for step in (1, 2):
            append_row(run, run.metrics, {"step": step})
        with pytest.raises(LeaseError):
            acquire(run.lease, replace(ME, job="8"))
    assert read_rows(run.metrics) == [{"step": 1}, {"step": 2}]
    assert capfd.readouterr().err.count("cannot be locked") == 1
    with acquire(run.lease, replace(ME, job="8")) as lease:
        assert lease.epoch == 2


def test_lost_nfs_answer_is_tolerated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def lose(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError

    monkeypatch.setattr(os, "link", lose)
    with acquire(tmp_path, ME) as lease:
        assert lease.epoch == 1


def test_stop_ends_waiting(tmp_path: Path) -> None:
    put(tmp_path / "lease", FAR)
    with pytest.raises(LeaseError, match="has"):
        acquire(tmp_path / "lease", ME, is_stopped=lambda: True)
