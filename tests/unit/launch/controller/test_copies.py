"""Checkpoints that the head cannot upload to checkpoint.upload_url are copied by another node."""

import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.errors import SubmitError
from slurm_rl.launch.controller import results, supervisor
from slurm_rl.launch.controller.agents import start_copy_here
from slurm_rl.launch.controller.allocation import Allocation, Nodes
from slurm_rl.launch.controller.attempts import EXIT_FAILED, EXIT_FINISHED, EXIT_INTERRUPTED, EXIT_NOT_OURS
from slurm_rl.launch.controller.results import copy_behind
from slurm_rl.node.agent import copy_out
from slurm_rl.node.processes import start_child
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, read_json, write_json
from tests.plans import plan_of as make_plan


class Machines(Allocation):
    """Machines that run the copy command locally, or cannot run it."""

    def __init__(self, *argv: str, error: Exception | None = None) -> None:
        self.argv, self.error, self.num_started = argv, error, 0

    def start_copy(self, attempt: AttemptDir) -> Nodes | None:
        self.num_started += 1
        if self.error is not None:
            raise self.error
        return start_child(self.argv, {}, attempt.log("final-copy"), 9) if self.argv else None


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    """Return an attempt that failed without a copy."""
    run = RunDir(tmp_path / "run")
    attempt = run.attempt(1)
    attempt.logs.mkdir(parents=True)
    write_json(attempt.start, {"job": "7"})
    attempt.log("driver").write_text("step 3\n")
    write_json(attempt.outcome, {"outcome": "failed", "exit_code": 1})
    append_event(run, "attempt/started", attempt=1)
    return attempt


def run_of(attempt: AttemptDir) -> RunDir:
    return RunDir(attempt.path.parents[1])


def plan_of(attempt: AttemptDir, bucket: Path) -> JobPlan:
    run = run_of(attempt)
    url = f"checkpoint.upload_url='file://{bucket}'"
    plan = make_plan("+exp=command", url, run_dir=run.path, python=sys.executable)
    (run.path / "code").symlink_to(Path(__file__).parents[4])
    return plan


def causes(attempt: AttemptDir) -> list[str]:
    return [row["cause"] for row in read_rows(run_of(attempt).events) if row["kind"] == "run/copy_failed"]


def test_missing_copies_are_made_once_by_same_command(attempt: AttemptDir, tmp_path: Path) -> None:
    run, plan = run_of(attempt), plan_of(attempt, tmp_path / "bucket")
    copy_out(run, plan, attempt, 0.0)
    assert causes(attempt) == ["not done within 0 s"]

    class Here(Machines):
        def start_copy(self, attempt: AttemptDir) -> Nodes | None:
            self.num_started += 1
            return start_copy_here(plan, attempt, "7", {})

    here = Here()
    for _ in range(2):
        copy_behind(run, here, attempt, lambda: False)
    assert here.num_started == 1 and causes(attempt) == ["not done within 0 s"], attempt.log("final-copy").read_text()
    [copy] = (tmp_path / "bucket/run").iterdir()
    # The agent recorded no start time.
    assert copy.name.startswith("attempt-1-20") and (copy / "complete.json").is_file()
    assert (copy / "files/logs/driver.log").read_text() == "step 3\n"


@pytest.mark.parametrize("is_stopped", [False, True])
def test_copy_behind_skips_refused_bucket_and_stopped_run(attempt: AttemptDir, is_stopped: bool) -> None:
    if not is_stopped:
        append_event(run_of(attempt), "run/copy_failed", attempt=1, cause="the bucket must let itself be written")
    machines = Machines("true")
    copy_behind(run_of(attempt), machines, attempt, lambda: is_stopped)
    assert machines.num_started == 0


def test_copies_of_earlier_job_are_ignored(attempt: AttemptDir) -> None:
    run = run_of(attempt)
    append_event(run, "run/copied", what="attempt-1-20260101-000000")
    append_event(run, "attempt/started", attempt=1)
    machines = Machines()
    copy_behind(run, machines, attempt, lambda: False)
    assert machines.num_started == 1 and causes(attempt) == [], "no machine was left for it"


@pytest.mark.parametrize(("most_s", "cause"), [(0.0, "not done within 0 s"), (600.0, "stop requested")])
def test_copy_wait_ends_at_timeout_or_stop(attempt: AttemptDir, most_s: float, cause: str) -> None:
    asked = iter([False])  # False before the copy starts, then True
    machines = Machines("sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    copy_behind(run_of(attempt), machines, attempt, lambda: most_s > 0 and next(asked, True), most_s=most_s)
    assert causes(attempt) == [cause]


def make_run(folder: Path, *, has_ended: bool = True) -> RunDir:
    run = RunDir(folder / "run")
    run.path.mkdir(parents=True)
    append_event(run, "attempt/started", attempt=1)
    append_event(run, "attempt/ended", attempt=1, outcome="finished")
    if has_ended:
        write_json(run.end, {"state": "finished", "exit_code": 0, "cause": "", "step": 3})
    return run


@pytest.mark.parametrize(
    ("status", "returned", "is_written"),
    [
        (EXIT_FINISHED, EXIT_FINISHED, True),
        (EXIT_INTERRUPTED, EXIT_INTERRUPTED, True),
        (supervisor.EXIT_KILLED, EXIT_FAILED, True),
        (EXIT_NOT_OURS, EXIT_NOT_OURS, False),
    ],
)
def test_drive_writes_summary_and_report_at_end(
    status: int, returned: int, is_written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, nothing = make_run(tmp_path), type("Nothing", (), {"__getattr__": lambda self, name: self})
    monkeypatch.setattr(supervisor.Supervisor, "main", lambda self: status)
    monkeypatch.setattr(supervisor, "lead_in_force", lambda *args, **kwargs: 0.0)
    plan: Any = nothing()
    assert supervisor.drive(run, plan, plan) == returned
    assert run.summary.is_file() is run.report.is_file() is is_written
    if is_written:
        assert read_json(run.summary)["state"] == "finished"


def test_write_results_skips_requeued_job_and_names_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    requeued = make_run(tmp_path / "requeued", has_ended=False)
    results.write_results(requeued)
    assert not requeued.summary.exists() and not requeued.report.exists()
    run = make_run(tmp_path)
    run.report.mkdir()
    results.write_results(run)
    [event] = [row for row in read_rows(run.events) if row["kind"] == "report/failed"]
    assert "IsADirectoryError" in event["cause"]
    said = capfd.readouterr()
    assert f"Next: python -m slurm_rl report {run.path}" in said.out + said.err


def test_write_results_stops_at_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path)
    monkeypatch.setattr(results, "_write", lambda run: time.sleep(60))
    results.write_results(run, timeout_s=0.2)
    said = capfd.readouterr()
    assert "it took longer than 0.2 s" in said.out + said.err


@pytest.mark.parametrize(
    ("machines", "cause"),
    [
        (Machines(error=SubmitError("srun must start", seen="no")), "srun must start; got no"),
        (Machines(error=FileNotFoundError("podman")), "podman"),
        (Machines("sh", "-c", "exit 3"), "ended with status 3.*final-copy.log"),
    ],
)
def test_copy_failure_is_reported(attempt: AttemptDir, machines: Machines, cause: str) -> None:
    copy_behind(run_of(attempt), machines, attempt, lambda: False)
    [found] = causes(attempt)
    assert re.search(cause, found)
