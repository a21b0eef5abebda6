"""A run on a full disk ends soon, names the disk, and resumes when there is space.

The disk is a real one of a few megabytes, which another process fills meanwhile.
"""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.errors import CheckpointError
from slurm_rl.launch.controller import controller
from slurm_rl.launch.controller.attempts import AttemptEnd
from slurm_rl.launch.controller.controller import STOP_SIGNALS, Controller
from slurm_rl.launch.here import LocalAllocation
from slurm_rl.models.checkpoint import background
from slurm_rl.models.checkpoint.background import reserve_reason, wait_for_files, write_or_report
from slurm_rl.models.checkpoint.step_saver import StepSaver
from slurm_rl.models.checkpoint.store import CheckpointStore
from slurm_rl.node.stop import run_to_outcome
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.io_errors import describe_disk, reserve_space
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, read_json, write_json, write_last
from tests.small_disk import small_disk
from tests.storage.disks import fill

NEVER = 3600.0
"""A deadline that no test reaches."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, size_kb=4096) as folder:
        yield folder


def fill_and_write(disk: Path, part: Path) -> None:
    part.write_bytes(bytes(1000))
    fill(disk)
    with part.open("ab") as file:
        file.write(bytes(100_000))


class Policy:
    """A rank that writes its file in the background."""

    def __init__(self) -> None:
        self.writer = ThreadPoolExecutor(1)

    def save(self, folder: Path, content: bytes) -> list[Path]:
        reserve_reason(folder / "rank-0.pt")
        self.writer.submit(write_or_report, folder / "rank-0.pt", lambda file: file.write(content))
        return [folder / "rank-0.pt"]


def save(saver: StepSaver, step: int, policy: Policy, content: bytes) -> None:
    with saver.saving(step, {}) as (folder, files):
        files += policy.save(folder, content)


def test_waiter_gets_name_of_full_disk(disk: Path) -> None:
    path = disk / "rank-0.pt"

    def write(file: BinaryIO) -> None:
        try:
            fill_and_write(disk, Path(file.name))
        finally:
            Path(file.name).unlink()
            fill(disk)  # another process takes the freed space

    reserve_reason(path)
    write_or_report(path, write)
    with pytest.raises(CheckpointError, match=rf"No space left on device.*{disk} has 0\.0 of 0\.0 GB free"):
        wait_for_files([path], NEVER, threading.Event())


def test_full_disk_keeps_checkpoints_and_next_save_works(disk: Path) -> None:
    saver, policy = StepSaver(RunDir(disk / "run"), 2, background=True, timeout_s=NEVER), Policy()
    save(saver, 1, policy, b"one")
    saver.wait()
    filler = fill(disk)
    with filler.open("ab") as file:
        file.truncate(filler.stat().st_size - 600_000)
    save(saver, 2, policy, bytes(2_000_000))
    with pytest.raises(CheckpointError, match="No space left on device"):
        saver.wait()
    store = CheckpointStore(disk / "run" / "checkpoints")
    assert [path.name for path in store.root.iterdir()] == ["step-1"]
    fill(disk)
    with pytest.raises(CheckpointError, match=r"No space left on device.*GB free"):
        save(StepSaver(RunDir(disk / "run"), 2), 2, policy, b"two")
    filler.unlink()
    again = StepSaver(RunDir(disk / "run"), 2, background=True, timeout_s=NEVER)
    newest = again.newest()
    assert newest is not None and (newest.path / "rank-0.pt").read_bytes() == b"one"
    save(again, 2, policy, bytes(2_000_000))
    again.wait()
    newest = store.latest()
    assert newest is not None and newest.step == 2 and store.skipped == []
    assert {path.name for path in newest.path.iterdir()} == {"rank-0.pt", "manifest.json"}


def test_stop_ends_wait_for_missing_file(tmp_path: Path) -> None:
    """The wait ends, whatever state the writer is in, as after the loss of a file system."""
    stopped = threading.Event()
    saver = StepSaver(
        RunDir(tmp_path), 2, background=True, timeout_s=NEVER, left_s=lambda: 0.0 if stopped.is_set() else None
    )
    with saver.saving(1, {}) as (folder, files):
        files.append(folder / "rank-0.pt")
    threading.Timer(0.2, stopped.set).start()
    with pytest.raises(CheckpointError, match="before the run stops"):
        saver.wait()


def test_kept_room_holds_how_run_ended(disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = RunDir(disk)
    reserve_space(run.reserve)
    fill(disk)
    assert write_last(run, run.end, {"state": "failed"})
    assert read_json(run.end) == {"state": "failed"} and not run.reserve.exists()
    fill(disk)
    assert not write_last(run, run.end, {"state": "x" * 9000})
    assert "No space left" in capfd.readouterr().err
    with pytest.raises(OSError, match="No space"):
        reserve_space(run.reserve)
    assert not run.reserve.exists()


def test_trainer_on_full_disk_names_it_and_exits(disk: Path) -> None:
    run = RunDir(disk)
    attempt = run.attempt(1)
    attempt.logs.mkdir(parents=True)
    reserve_space(run.reserve)

    def train(run: RunDir, attempt: AttemptDir) -> None:
        fill(disk)
        write_json(run.prompts, {"n": 1})

    assert run_to_outcome(run, attempt, train) == 1
    outcome = read_json(attempt.outcome)
    assert outcome["outcome"] == "failed"
    assert f"No space left on device: '{run.prompts}'; {disk} has 0.0" in outcome["cause"]
    assert outcome["cause"].endswith("Next: make room there, then resume")


def lead(run: RunDir, plan: JobPlan) -> int:
    """Return the controller's result, without its signal handling."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        return Controller(run, plan, LocalAllocation(run, plan)).main()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_briefly_full_disk_ends_no_run(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When an attempt starts and when the run is locked: space is freed while the controller waits."""
    run, said = RunDir(disk / "run"), list[str]()
    plan = build_plan(load_config(["+exp=demo", "job.max_failures=1"]), str(run.path), SubmitFacts("/python", 4, "1"))
    write_json(run.plan, plan.to_json())
    filler = fill(disk)

    def run_nodes(self: Controller, attempt: AttemptDir) -> AttemptEnd:
        if attempt.number == 1:
            run.reserve.unlink()
            fill(disk)
            return AttemptEnd("failed", "the policy must be able to write its checkpoint", 1)
        return AttemptEnd("finished")

    def note(text: str) -> None:
        if "whether that changes" in text:
            said.append(text)
            filler.unlink()

    monkeypatch.setattr(Controller, "_run_nodes", run_nodes)
    monkeypatch.setattr(controller, "_ROOM_LOOK_S", 0.0)
    monkeypatch.setattr(controller, "log_to_stderr", note)
    assert lead(run, plan) == 0
    assert read_json(run.end)["state"] == "finished"
    assert len(said) == 2
    assert run.attempt_numbers() == [1, 2]


@pytest.mark.parametrize("freed_is_taken", [False, True])
def test_controller_on_full_disk_ends_and_names_it(
    disk: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], freed_is_taken: bool
) -> None:
    """If another process takes the reserved space too, only exit status and output are left."""
    run = RunDir(disk / "run")
    plan = build_plan(load_config(["+exp=demo", "job.max_failures=3"]), str(run.path), SubmitFacts("/python", 4, "1"))
    write_json(run.plan, plan.to_json())

    def run_nodes(self: Controller, attempt: AttemptDir) -> AttemptEnd:
        fill(disk)
        if freed_is_taken:
            run.reserve.unlink()
            fill(disk)
        return AttemptEnd("failed", "the policy must be able to write its checkpoint", 1)

    monkeypatch.setattr(Controller, "_run_nodes", run_nodes)
    monkeypatch.setattr(controller, "_ROOM_S", 0.0)
    assert lead(run, plan) == 1
    said = capfd.readouterr().err
    if freed_is_taken:
        assert "No space left on device" in said
    else:
        assert "No space left on device" in read_json(run.end)["cause"]
        assert read_json(run.attempt(1).end)["cause"] == "the policy must be able to write its checkpoint"
    assert not run.reserve.exists()


def test_unreportable_file_is_not_awaited(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank had no space for its file and none for its error."""
    monkeypatch.setattr(background, "_ASK_S", 0.05)
    fill(disk)
    with pytest.raises(CheckpointError, match="No space left on device"):
        wait_for_files([disk / "rank-1.pt"], NEVER, threading.Event())


def test_disk_is_named_by_mount_also_for_missing_path(disk: Path) -> None:
    assert describe_disk(disk / "not" / "there").startswith(f"{disk} has 0.0 of 0.0 GB free, ")
