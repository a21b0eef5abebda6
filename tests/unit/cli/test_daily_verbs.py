"""Output for programs, watching, names of runs, and the last line of `plan`."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_rl.__main__ import main
from slurm_rl.cli import eval as eval_verb
from slurm_rl.cli import foreground, logs, status, watch
from slurm_rl.cli.parser import load_verbs
from slurm_rl.launch.controller.record import RunState, record_job
from slurm_rl.launch.runs.find import open_run, remember
from slurm_rl.launch.slurm.launcher import SlurmLauncher
from slurm_rl.run_dir.run_dir import RunDir, append_row, write_json
from tests.unit.plugins.report.sample_run import fill, make_events, make_rows


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """Return a finished local run of another folder, with a name and a job id."""
    monkeypatch.chdir(tmp_path)
    run = RunDir(tmp_path / "shared" / "sums-1")
    write_json(run.plan, {})
    record_job(run, "local", "4711")
    fill(run.metrics, make_rows())
    fill(run.events, make_events())
    append_row(run, run.metrics, {"step": 10, "stage": "eval", "set/gsm8k/avg@4": 0.5})
    append_row(run, run.samples, {"step": 3, "prompt": "1+1", "completion": "2", "reward": 1.0})
    write_json(run.end, {"state": "finished", "exit_code": 0, "cause": "", "step": 10})
    remember(run.path, ["4711"])
    return run


def call(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_status_prints_run_and_folder_as_json(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    found = call(capsys, "status", "4711")
    keys = ("state", "is_alive", "job_id", "step", "num_steps", "stage", "phase")
    assert [found[key] for key in keys] == ["finished", False, "4711", 10, 10, "grpo", None]
    assert found["metrics"]["reward/mean"] == 0.625 and found["sets"] == {"gsm8k": {"step": 10, "avg@4": 0.5}}
    [row] = call(capsys, "status", str(run.path.parent))
    assert (row["run_dir"], row["state"], row["metric"]) == (str(run.path), "finished", {"reward": 0.625})
    fresh = RunDir(run.path.parent / "fresh")
    write_json(fresh.plan, {})
    assert call(capsys, "status", str(fresh.path))["step"] is None


def test_report_and_samples_print_json(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "report", "sums-1")["reward"] == {"first": 0.3125, "last": 0.625}
    assert run.report.is_file()
    assert call(capsys, "samples", "4711")[0]["completion"] == "2"


def test_config_prints_keys_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"eval.interval", "optim.lr"} < {row["key"] for row in call(capsys, "config")}
    rows = {row["key"]: row for row in call(capsys, "config", "optim", "+exp=demo", "optim.lr=0.5")}
    assert rows["optim.lr"]["value"] == 0.5 and rows["optim.lr"]["type"] == "number > 0"
    assert all(key.startswith("optim.") for key in rows)


def test_eval_prints_job_or_summary_as_json(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan: Any = SimpleNamespace(launcher="slurm", container={}, image_file=None)
    monkeypatch.setattr(foreground, "describe_image", lambda plan: "")
    started = foreground.Started(run, plan, SimpleNamespace(job_id="12", process=None))  # type: ignore[arg-type]
    monkeypatch.setattr(eval_verb, "start_run", lambda *_: started)
    words = ["eval", "model=hf", "model.path=a/b", "+reward=math", "+eval.sets.x.data=x.jsonl"]
    assert call(capsys, *words) == {"run_dir": str(run.path), "job_id": "12", "launcher": "slurm"}
    assert foreground._finish(run, [], as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["sets"]["gsm8k"]["after"] == {"step": 10, "avg@4": 0.5}


def test_every_verb_of_runs_takes_name_and_job_id(run: RunDir, capfd: pytest.CaptureFixture[str]) -> None:
    verbs = [name for name, parser in load_verbs().by_name.items() if "[run" in parser.arguments]
    assert {"attach", "cancel", "convert", "eval", "logs", "report", "resume", "samples", "status"} == set(verbs)
    lines = [[verb] for verb in verbs] + [
        ["report", "--goodput"],
        ["doctor", "--nodes", "--run"],
        ["join", "--rank=0", "--nodes=1", "--run"],
    ]
    for words in lines:
        for name in ("sums-1", "4711"):
            main([*words, name])
            said = capfd.readouterr()
            assert "no directory, run name or job id" not in said.err and "must be a run, or a folder" not in said.err
        main([*words, "sums-2"])
        assert "sums-" in capfd.readouterr().err, words
    assert open_run("4711").path == run.path  # job.depends_on and the Python API


class Clock:
    """Ends the run at the second sleep."""

    def __init__(self, states: list[RunState]) -> None:
        self.states, self.slept = states, 0

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        if self.slept == 2:
            self.states[:] = [RunState("finished")]
        if self.slept == 9:
            raise KeyboardInterrupt

    def time(self) -> float:
        return 0.0


def test_watch_prints_changes_until_run_ends(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    states = [RunState("running", "on n1", is_alive=True)]
    clock = Clock(states)
    for module in (watch, status):
        monkeypatch.setattr(module, "read_states", lambda runs: states)
    monkeypatch.setattr(watch, "time", clock)
    assert main(["status", "--watch", "--json", "sums-1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["running", "finished"] and clock.slept == 2
    states[:], clock.slept = [RunState("failed", "out of memory")], 0
    assert main(["status", "--watch", "sums-1"]) == 1
    assert "\x1b" not in capsys.readouterr().out
    # A terminal is redrawn; Slurm does not answer, and Ctrl-C leaves.
    states[:], clock.slept = [RunState("unknown", "squeue failed")], 2
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["status", "--watch", "sums-1"]) == 0
    drawn, left, last = capsys.readouterr().out.partition("\x1b[?1049l")
    assert drawn.startswith("\x1b[?1049h") and drawn.count("\x1b[H\x1b[J") == 7 and left
    assert last.count("state   unknown") == 1 and "\x1b" not in last


def test_plan_ends_with_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SlurmLauncher, "check", lambda self, plan: (plan, ["gpus    one note"]))
    words = ["plan", "+exp=demo", "+cluster=slurm_cpu", "run_dir=first"]
    assert main(words) == 0
    short, notes = capsys.readouterr()
    assert "gpus    one note\n" in notes
    assert short.endswith("\nvalid, not submitted\n") and "RAY_" not in short and "#SBATCH" not in short
    assert main([*words, "--full"]) == 0
    full = capsys.readouterr().out
    assert full.startswith(short.removesuffix("valid, not submitted\n")) and full.endswith("\nvalid, not submitted\n")
    assert "RAY_" in full and "--nodes=2" in full
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_nodes"] == 2
    assert main([*words, "model.init_from=/nowhere"]) == 2
    said = capsys.readouterr()
    assert "valid" not in said.out and "model.init_from must be a folder" in said.err


def test_logs_give_reason_for_empty_output(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "read_states", lambda runs: [RunState("pending", "Priority, starts about 14:02")])
    log = logs.log_path(run, "node-0")
    log.parent.mkdir(parents=True)
    log.touch()
    for text, words in ((None, ["--who", "node-0"]), ("", [])):
        monkeypatch.setattr(logs, "read_far_log", lambda run, text=text: text)
        assert main(["logs", "sums-1", *words]) == 0
        assert "yet; the run is pending: Priority, starts about 14:02" in capsys.readouterr().err
