"""A stop request is handled while a file system hangs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.launch.controller.attempts import EXIT_INTERRUPTED
from slurm_rl.run_dir import fs_probe
from slurm_rl.run_dir.fs_probe import SubprocessProbe, run_in_child
from slurm_rl.run_dir.run_dir import RunDir, write_json
from tests.hanging_disk import HangingDisk, hanging_disk
from tests.slurm.cluster.waiting import wait_until

# A supervisor with a child and a grandchild that wait for the disk; it reports to another one.
SUPERVISED = """
import os, subprocess, sys, time
from pathlib import Path
from slurm_rl.launch.controller import supervisor
from slurm_rl.launch.controller.supervisor import STOP_SIGNALS, Supervisor

supervisor.LOST_S = 0.5
disk, told = Path(sys.argv[1]), Path(sys.argv[2])

def work():
    subprocess.Popen(["sh", "-c", f"while echo >> {disk}/b; do sleep 0.05; done"], start_new_session=True)
    while True:
        (disk / "a").write_text("a")
        time.sleep(0.05)

sys.exit(Supervisor(work, disk, patience_s=1, on_death=print, on_hang=told.write_text, clean_up=int).main())
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[HangingDisk]:
    with hanging_disk(tmp_path) as found:
        yield found


def wait_until_it_hangs(pid: int) -> None:
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}/wchan").read_text() != "request_wait_answer":
        assert time.monotonic() < deadline, Path(f"/proc/{pid}/wchan").read_text()
        time.sleep(0.01)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_stopped_job_ends_although_disk_hangs(disk: HangingDisk, tmp_path: Path) -> None:
    told = tmp_path / "told"
    with subprocess.Popen([sys.executable, "-c", SUPERVISED, str(disk.path), str(told)]) as process:
        try:
            deadline = time.monotonic() + 60
            while not (disk.source / "b").exists():
                assert time.monotonic() < deadline
                time.sleep(0.05)
            [child] = children_of(process.pid)
            [grandchild] = children_of(child)
            disk.hang()
            wait_until_it_hangs(child)
            process.send_signal(signal.SIGUSR2)  # a time limit: the disk may recover
            time.sleep(0.8)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == EXIT_INTERRUPTED
            # SIGKILL is pending: a request that the server has read is not interrupted before its answer.
            disk.answer()
            wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (child, grandchild)), "them to be gone")
            assert f"{disk.path} has not responded for 0.5 s" in told.read_text()
        finally:
            process.kill()


def test_slow_answer_is_awaited(disk: HangingDisk) -> None:
    watch = SubprocessProbe(disk.path, 3600)
    disk.hang()
    assert not watch.hangs()
    time.sleep(0.1)
    assert not watch.hangs()
    disk.answer()
    assert run_in_child(lambda: (disk.path / "a").write_text("a") and 7, disk.path) == 7
    watch.close()


@pytest.fixture
def controller(disk: HangingDisk) -> Iterator[subprocess.Popen[bytes]]:
    """Return a process with the command line of a local run's controller."""
    words = ["submitit.local._local", str(disk.path / "run" / "submitit")]
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", *words]) as process:
        yield process
        process.kill()


def test_cancel_ends_processes_of_hanging_folder(
    disk: HangingDisk,
    controller: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(fs_probe, "ANSWER_S", 0.5)
    monkeypatch.setenv("PATH", "")  # no Slurm
    run = RunDir(disk.path / "run")
    write_json(run.plan, {})
    disk.hang()
    assert main(["cancel", str(run.path)]) == 0
    assert f"stopping after a save: process {controller.pid}" in capfd.readouterr().err
    assert controller.wait(60) == -signal.SIGTERM
    assert main(["cancel", str(run.path)]) == 2
    assert "no process here and no job of yours in squeue" in capfd.readouterr().err
    assert os.listdir(disk.source / "run") == ["plan.json"]  # noqa: PTH208
