from pathlib import Path
from typing import Any

import pytest

from slurm_rl.launch.controller import results, supervisor
from slurm_rl.launch.controller.attempts import EXIT_FAILED, EXIT_FINISHED, EXIT_INTERRUPTED, EXIT_NOT_OURS
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir, append_event, read_json, write_json


def make_run(folder: Path, *, has_ended: bool = True) -> RunDir:
    run = RunDir(folder / "run")
    run.path.mkdir()
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


def test_write_results_skips_requeued_job(tmp_path: Path) -> None:
    run = make_run(tmp_path, has_ended=False)
    results.write_results(run)
    assert not run.summary.exists() and not run.report.exists()


def test_write_results_warns_when_report_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
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
    import time

    run = make_run(tmp_path)
    monkeypatch.setattr(results, "_write", lambda run: time.sleep(60))
    results.write_results(run, timeout_s=0.2)
    said = capfd.readouterr()
    assert "it took longer than 0.2 s" in said.out + said.err
