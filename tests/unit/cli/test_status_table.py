import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len

from slurm_rl.__main__ import main
from slurm_rl.cli import logs, progress, status
from slurm_rl.cli.run_facts import describe_phase
from slurm_rl.cli.status_json import build_run
from slurm_rl.cli.table import RunLine, join_row, render_runs
from slurm_rl.launch import jobs
from slurm_rl.launch.controller.record import RunState, record_job
from slurm_rl.run_dir.run_dir import RunDir, append_event, append_row, write_json
from slurm_rl.trainers.grpo.build import wait_until_ready
from tests.unit.plugins.report.sample_run import fill, make_row

EVIL = "\x1b[2J\x9b31m\u202e\ttxt"
SCREEN = os.terminal_size((80, 33))


def line(index: int, **fields: object) -> RunLine:
    told = {"name": f"a-name-that-is-rather-long-20261121-1015{index:02}", "state": "running", "age_s": 90.0 * index}
    told |= {"job": f"12345{index}", "done": 1000 + index, "total": 12000, "metric": ("reward", 0.5)}
    told |= {"why": "on gpu-node-[0001-0064], attempt 3, after a preemption of a long cause"} | fields
    return RunLine(**told)  # type: ignore[arg-type]


def text(lines: list[RunLine], screen: os.terminal_size | None = SCREEN) -> list[str]:
    return [join_row(row) for row in render_runs(lines, screen)]


def test_thirty_runs_fit_in_thirty_lines_of_80_columns() -> None:
    table = text([line(index) for index in range(30)])
    assert len(table) == 31 and max(map(cell_len, table)) <= 80
    assert table[0].split() == ["RUN", "STATE", "STEP", "DONE", "REWARD", "AGE", "WHERE", "OR", "WHY"]
    assert table[3].split()[:6] == ["a-name-tha…121-101502", "running", "1002/12000", "8%", "0.500", "3"]
    assert all("on gpu-node-[" in row for row in table[1:])


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 99, 100, 200])
def test_lines_fit_terminal(columns: int) -> None:
    lines = [line(index, why=EVIL * 9, name="\u4f60\u597d" * 30) for index in range(40)]
    assert max(map(cell_len, text(lines, os.terminal_size((columns, 24))))) <= columns


def test_truncated_table_states_number_of_omitted_runs() -> None:
    lines = [line(index, state="finished" if index % 2 else "failed") for index in range(40)]
    table = text(lines, os.terminal_size((80, 24)))
    assert len(table) == 23 and table[-1] == "and 19 more: 10 finished, 9 failed (all: | less)"


def test_piped_output_is_complete() -> None:
    table = text([line(index) for index in range(100)], None)
    assert len(table) == 101
    assert table[1].endswith("attempt 3, after a preemption of a long cause") and "123450" in table[1]
    table = text([line(0, done=None, total=0, metric=None, why="", age_s=3.0)])
    assert table[0].split() == ["RUN", "STATE", "STEP", "DONE", "METRIC", "AGE"], "an empty column is omitted"
    assert table[1].split()[1:] == ["running", "-", "-", "-", "3", "s"]


def test_hostile_cause_is_one_plain_line() -> None:
    [_, row] = text([line(0, name=f"n{EVIL}", state=f"dead{EVIL}", why=f"{EVIL}\nTraceback")], None)
    assert not set(row) & set("\x1b\x9b\u202e\t\n") and "\\x1b[2J" in row and "Traceback" not in row


def make_run(folder: Path, index: int, state: str = "finished") -> RunDir:
    run = RunDir(folder / f"run{index}")
    write_json(run.plan, {})
    os.utime(run.plan, (1000.0 + index, 1000.0 + index))
    write_json(run.job, {"launcher": "local", "job_id": str(index)})
    write_json(run.end, {"state": state, "exit_code": 0, "cause": "", "step": 4})
    append_event(run, "trainer/started", warmup_steps=2, num_steps=6)
    append_row(run, run.metrics, {"step": 4, "stage": "grpo", "reward/mean": 0.25, "time/step_s": 2.0})
    append_row(run, run.metrics, {"step": 4, "stage": "eval", "accuracy/greedy": 1.0})
    return run


def test_folder_lists_newest_run_first_and_sweep_as_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for index in range(2):
        make_run(tmp_path, index)
    sweep = tmp_path / "sweep-of-two"
    for index in range(2):
        make_run(sweep, 10 + index, "failed" if index else "finished")
    (sweep / "sweep.json").write_text("{}")
    assert main(["status", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    rows = [row.split() for row in out.splitlines()]
    assert [row[0] for row in rows] == ["RUN", "sweep-of-two", "run1", "run0"]
    assert rows[1][1:4] == ["sweep", "2/2", "100%"] and rows[1][-4:] == ["1", "finished,", "1", "failed"]
    assert rows[2][1:5] == ["finished", "4/8", "50%", "0.250"]


def test_active_run_shows_step_pace_and_remaining_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = make_run(tmp_path, 0)
    shown = status.render_status(run)
    assert "step    4 of 8, 50% (grpo)" in shown and "reward  0.250" in shown and "pace" not in shown
    monkeypatch.setattr(status, "read_states", lambda runs: [RunState("running", is_alive=True) for _ in runs])
    assert "pace    2.0 s a step, about 8.0 s left" in status.render_status(run)
    append_row(run, run.metrics, {"step": 5, "stage": "grpo", "time/step_s": 2.0, "time/stamp": time.time() - 60})
    assert "pace    " in status.render_status(run)
    append_event(run, "attempt/started", attempt=2)
    shown = status.render_status(run)
    assert "step    5 of 8" in shown and "pace" not in shown, "a pace of an earlier attempt"


def test_colours_need_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path, 0)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for name, value in {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["status", str(tmp_path)]) == 0
    assert "\x1b[32mfinished\x1b[0m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["status", str(tmp_path)]) == 0
    assert "\x1b" not in capsys.readouterr().out


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


def test_describe_phase_names_ready_engines_until_training(run: RunDir) -> None:
    assert describe_phase(run, 175.0) == f"{PHASE} (for 45 s)"
    assert f"phase   {PHASE} (for " in status.render_status(run)
    fill(run.events, [{"time": 140.0, "kind": "trainer/started", "warmup_steps": 0, "num_steps": 9}])
    assert describe_phase(run, 175.0) == "starting to train (for 35 s)"
    fill(run.metrics, [make_row(1, "grpo")])
    assert describe_phase(run, 175.0) == ""


def test_status_shows_cancel_in_progress_and_endpoint(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(run.job, {"launcher": "local", "job_id": "1"})
    write_json(run.prometheus, [{"targets": ["n1:9100"], "labels": {}}])
    assert "cancel  " not in status.render_status(run)
    launcher = SimpleNamespace(cancel=len, read_log=lambda job: None)
    monkeypatch.setattr(jobs, "open_launcher", lambda name: launcher)
    assert jobs.cancel_runs([run]) == 1
    shown = status.render_status(run)
    assert "\ncancel  requested 0 s ago: it saves what it has" in shown
    assert "\nscrape  http://n1:9100/metrics" in shown
    assert build_run(run, RunState("running", is_alive=True), 0.0)["cancel_requested"] > 0
    record_job(run, "local", "2")
    assert "cancel  " not in status.render_status(run), "resumed since"


def test_logs_explain_missing_and_empty_output(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    log = logs.log_path(run, "driver")
    for _ in range(2):
        assert main(["logs", str(run.path)]) == 0
        said = capsys.readouterr()
        assert said.out == "" and f"# no log of the trainer yet; the run is running: on n1; {PHASE}" in said.err
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()


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
    actor: Any = SimpleNamespace(handle=SimpleNamespace(ready=SimpleNamespace(remote=lambda: None)))
    cluster: Any = SimpleNamespace(gather=lambda calls, *, on_ready, **_: [on_ready(count) for count in (1, 2)])
    wait_until_ready(cluster, [actor, actor], 1.0, "rollout engines", RunDir(tmp_path))
    phase = describe_phase(RunDir(tmp_path), time.time())
    assert phase.startswith("loading weights, 2 of 2 rollout engines ready")


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
