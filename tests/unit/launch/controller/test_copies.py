"""Checkpoints that the head cannot upload to checkpoint.upload_url are copied by another node."""

import sys
from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.errors import SubmitError
from slurm_rl.launch.controller.agents import start_copy_here
from slurm_rl.launch.controller.allocation import Allocation, Nodes
from slurm_rl.launch.controller.results import copy_behind
from slurm_rl.node.agent import copy_out
from slurm_rl.node.processes import start_child
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, write_json


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
    config = load_config(["+exp=command", f"checkpoint.upload_url='file://{bucket}'"])
    plan = build_plan(config, str(run.path), SubmitFacts(sys.executable, 2, "0"))
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


@pytest.mark.parametrize("error", [SubmitError("srun must start", seen="no"), FileNotFoundError("podman")])
def test_copy_start_failure_is_reported(attempt: AttemptDir, error: Exception) -> None:
    copy_behind(run_of(attempt), Machines(error=error), attempt, lambda: False)
    assert causes(attempt) == [str(error)]


def test_silent_copy_is_named_with_log(attempt: AttemptDir) -> None:
    copy_behind(run_of(attempt), Machines("sh", "-c", "exit 3"), attempt, lambda: False)
    assert "ended with status 3" in causes(attempt)[0] and "final-copy.log" in causes(attempt)[0]
