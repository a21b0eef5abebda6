import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.__main__ import main
from slurm_rl.cli import logs, progress, status
from slurm_rl.cli.run_facts import describe_phase
from slurm_rl.launch.controller.record import RunState
from slurm_rl.run_dir.run_dir import RunDir, append_event, write_json
from slurm_rl.trainers.grpo.build import wait_until_ready
from tests.unit.plugins.report.sample_run import fill, make_row

ENGINES = {"kind": "workers/loading", "workers": "rollout engines", "ready": 2, "of": 8}
PHASE = "loading weights, 2 of 8 rollout engines ready"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """Return a Slurm run that loads its engines and has no log yet."""
    run = RunDir(tmp_path / "run")
    fill(run.events, [{"time": 100.0, "kind": "attempt/started", "attempt": 1}, {"time": 130.0, **ENGINES}])
    write_json(run.plan, {})
    for module in (logs, status):
        monkeypatch.setattr(module, "read_states", lambda runs: [RunState("running", "on n1", is_alive=True)])
    return run


def test_describe_phase_names_ready_engines(run: RunDir) -> None:
    assert describe_phase(run, 175.0) == f"{PHASE} (for 45 s)"


def test_describe_phase_is_empty_during_training(run: RunDir) -> None:
    fill(run.events, [{"time": 140.0, "kind": "trainer/started", "warmup_steps": 0, "num_steps": 9}])
    assert describe_phase(run, 175.0) == "starting to train (for 35 s)"
    fill(run.metrics, [make_row(1, "grpo")])
    assert describe_phase(run, 175.0) == ""


def test_status_shows_phase(run: RunDir) -> None:
    assert f"phase   {PHASE} (for " in status.render_status(run)


@pytest.mark.parametrize("is_empty", [True, False])
def test_logs_explain_empty_output(run: RunDir, is_empty: bool, capsys: pytest.CaptureFixture[str]) -> None:
    log = logs.log_path(run, "driver")
    if is_empty:
        log.parent.mkdir(parents=True)
        log.touch()
    assert main(["logs", str(run.path)]) == 0
    said = capsys.readouterr()
    assert said.out == "" and f"# no log of the trainer yet; the run is running: on n1; {PHASE}" in said.err


def test_logs_follow_shows_phases_until_log_begins(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def go_on(seconds: float) -> None:
        if not (log := logs.log_path(run, "driver")).exists():
            log.parent.mkdir(parents=True)
            log.write_text("first line\n")
            append_event(run, "engine/ready")
        write_json(run.end, {"state": "finished", "exit_code": 0, "cause": "", "step": 1})

    monkeypatch.setattr(logs.time, "sleep", go_on)
    assert main(["logs", "-f", str(run.path)]) == 0
    said = capsys.readouterr()
    assert said.out == "first line\n" and said.err.count(f"# {PHASE}\n") == 1 and "engines are ready" not in said.err


def test_plain_display_prints_regularly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    state = progress.Progress()
    show = progress.Display(state)
    state.apply_event({"time": 1.0, **ENGINES})
    for clock[0] in (0.0, 10.0, 20.0, 30.0, 40.0):
        show([])
    assert capsys.readouterr().out.splitlines() == [f"{PHASE} (for 20.0 s)", f"{PHASE} (for 40.0 s)"]


def test_wait_until_ready_reports_every_worker(tmp_path: Path) -> None:
    class Cluster:
        def gather(self, calls: list[Any], *, timeout_s: float, what: str, on_ready: Any) -> None:
            assert what == "starting the rollout engines"
            on_ready(1)
            on_ready(2)

    ready = type("Remote", (), {"remote": lambda self: None})()
    actor: Any = type("Actor", (), {"handle": type("Handle", (), {"ready": ready})})
    cluster: Any = Cluster()
    run = RunDir(tmp_path)
    wait_until_ready(cluster, [actor, actor], 1.0, "rollout engines", run)
    assert describe_phase(run, time.time()).startswith("loading weights, 2 of 2 rollout engines ready")


def test_foreground_mentions_continued_run_after_sigterm(tmp_path: Path) -> None:
    script = f"""
from slurm_rl.cli.foreground import follow_to_the_end
from slurm_rl.cli.output import catch_errors
from slurm_rl.run_dir.run_dir import RunDir, append_event
class Job:
    def done(self): return False
run = RunDir({str(tmp_path)!r})
append_event(run, "attempt/started", attempt=1)
raise SystemExit(catch_errors(lambda: follow_to_the_end(run, Job())))
"""
    command = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    assert "attempt started" in command.stdout.readline()
    command.send_signal(signal.SIGTERM)
    _, said = command.communicate(timeout=30)
    assert command.returncode == 128 + signal.SIGTERM
    assert "the run continues" in said and f"logs -f {tmp_path}" in said and f"cancel {tmp_path}" in said
