import functools
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_rl.cli import foreground
from slurm_rl.errors import LeaseError, RunDirError
from slurm_rl.launch import here as local_allocation
from slurm_rl.launch import jobs
from slurm_rl.launch.controller.attempts import EXIT_NOT_OURS
from slurm_rl.launch.controller.controller import Controller
from slurm_rl.launch.controller.record import RunState, record_job
from slurm_rl.launch.controller.supervisor import own_epoch
from slurm_rl.launch.here import LOCAL_JOB_VARIABLE, LocalAllocation
from slurm_rl.launch.jobs import held_to_resume
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import run_dir, run_lock
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir, hold, read_json, write_json
from slurm_rl.run_dir.run_lock import LockHolder
from tests.plans import demo_plan

OTHER = replace(LockHolder.of_this_process("local", "5"), machine="another", host="n2")


@pytest.fixture
def plan(tmp_path: Path) -> JobPlan:
    return demo_plan(RunDir(tmp_path / "run"))


@pytest.fixture
def run(tmp_path: Path, plan: JobPlan, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunDir]:
    monkeypatch.setattr(
        run_dir, "acquire", functools.partial(run_lock.acquire, beat_s=0.05, silence_s=0.3, look_s=0.05)
    )
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    run = RunDir(tmp_path / "run")
    write_json(run.plan, plan.to_json())
    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_controller_that_loses_lock_ends_nodes_and_stops_writing(
    run: RunDir, plan: JobPlan, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*_: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "600"]))
        write_json(run.lease / "2.json", vars(OTHER))
        return started[-1]

    monkeypatch.setattr(local_allocation, "start_agent", start)
    assert Controller(run, plan, LocalAllocation(run, plan)).main() == EXIT_NOT_OURS
    assert [nodes.poll() for nodes in started] == [-signal.SIGTERM]
    assert [row["kind"] for row in read_rows(run.events)] == ["attempt/started"]
    assert not run.end.exists() and not run.attempt(1).end.exists()
    assert read_json(run.attempt(1).start)["epoch"] == 1
    assert "this one stops writing; got local job 5 (process" in capfd.readouterr().err


def test_controller_without_lock_changes_nothing(run: RunDir, plan: JobPlan) -> None:
    record_job(run, "local", "5", host="n2")
    write_json(run.end, {"state": "failed"})
    other = RunDir(run.path)
    with Controller(other, plan, LocalAllocation(other, plan))._take_run():
        before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
        assert Controller(run, plan, LocalAllocation(run, plan)).main() == EXIT_NOT_OURS
        assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_job_json_of_two_submissions_names_job_that_ran(
    run: RunDir, plan: JobPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_job(run, "local", "99", host="n2")
    monkeypatch.setenv(LOCAL_JOB_VARIABLE, "77")
    with Controller(run, plan, LocalAllocation(run, plan))._take_run():
        found = read_json(run.job)
        assert (found["job_id"], found["host"]) == ("77", os.uname().nodename)


def test_run_is_resumed_once_and_not_while_pending(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    second = held_to_resume(RunDir(run.path))
    with held_to_resume(run), pytest.raises(LeaseError, match="a command that resumes it"):
        second.__enter__()
    monkeypatch.setattr(jobs, "read_states", lambda runs: [RunState("pending", is_alive=True)])
    with pytest.raises(RunDirError, match="active run cannot be resumed"), held_to_resume(run):
        raise AssertionError("a job is there")


def test_run_directory_without_locks_is_detected(run: RunDir) -> None:
    run.lease.write_text("a file in its place")
    with pytest.raises(RunDirError, match=r"must be writable \(File exists; .* GB free"), held_to_resume(run):
        raise AssertionError("it was taken")


def test_supervisor_writes_only_for_controllers_of_its_job(run: RunDir) -> None:
    mine = LockHolder.of_this_process("slurm", "7")
    with hold(run, mine):
        assert own_epoch(run, mine) == 1
        assert own_epoch(run, replace(mine, restart=1)) == 0


def test_supervisor_of_refused_controller_writes_no_results(
    run: RunDir, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = run.path / "log"
    log.write_text("submitit INFO\nslurm_rl: a run can have only one controller at a time\nsubmitit INFO done\n")
    job = SimpleNamespace(done=lambda: True, result=lambda: EXIT_NOT_OURS, paths=SimpleNamespace(stdout=log))
    monkeypatch.setattr(foreground, "follow", lambda run, is_alive: None)
    assert foreground.follow_to_the_end(run, job) == EXIT_NOT_OURS
    assert capfd.readouterr().err == "slurm_rl: a run can have only one controller at a time\n"
    assert not run.summary.exists()
