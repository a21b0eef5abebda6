import json
import os
import time
from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.cli import cancel
from slurm_rl.cli.find import find_run, find_target
from slurm_rl.errors import RunDirError
from slurm_rl.launch.controller.record import record_job
from slurm_rl.launch.runs.find import read_recent, remember, resolve, state_file
from slurm_rl.launch.runs.pipeline import PIPELINE_FILE
from slurm_rl.launch.sweep.ledger import Ledger, SweepDir, SweepRun, save_ledger
from slurm_rl.run_dir.run_dir import RunDir, write_json


def make_run(path: Path, job_id: str | None = None, *, age_s: float = 0.0, sent: bool = True) -> Path:
    path.mkdir(parents=True)
    write_json(RunDir(path).plan, {})
    os.utime(path / "plan.json", (time.time() - age_s,) * 2)
    if job_id is not None:
        record_job(RunDir(path), "slurm", job_id)
    if sent:
        remember(path, [job_id] if job_id else [])
    return path


def make_sweep(path: Path, job_id: str) -> Path:
    sweep = SweepDir(path)
    sweep.path.mkdir(parents=True)
    runs = tuple(SweepRun(index, (f"seed={index}",), job_id, index + 3) for index in range(2))
    save_ledger(sweep, Ledger("name", "reward/mean", False, runs))
    for index in range(2):
        make_run(sweep.run(index).path, sent=False)
    remember(sweep.path, [job_id])
    return sweep.path


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory; runs are in another folder."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_find_run_returns_newest_submission_in_any_folder(tmp_path: Path, cwd: Path) -> None:
    with pytest.raises(RunDirError, match=r"no run was found.*Next: name its directory, or start one"):
        find_run([])
    old = make_run(tmp_path / "scratch/old", "1", age_s=500)
    newest = make_run(tmp_path / "shared/new", "2")
    remember(tmp_path / "a/deleted", ["9"])
    assert find_run([]).path == newest
    remember(old, ["3"])  # resumed
    assert find_run([]).path == old and read_recent()[0].jobs == ("3",)
    local = make_run(cwd / "runs/local", "12", age_s=-5, sent=False)
    assert find_run([]).path == local and resolve("12").absolute() == local
    assert [resolve(word) for word in ("new", "2")] == [newest] * 2 and find_run(["2"]).path == newest


def test_resolve_finds_sweeps_and_their_runs(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "shared/lr", "40")
    assert resolve("40") == resolve("lr") == sweep
    assert resolve("40_4") == resolve("lr/1") == sweep / "1"
    assert resolve("40_9") == Path("40_9")


def test_commands_without_name_use_last_sweep_or_pipeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a/run")
    sweep = make_sweep(tmp_path / "shared/lr", "40")
    assert find_target([]) == sweep and main(["status"]) == 0
    assert f"sweep   {sweep}" in capsys.readouterr().out
    with pytest.raises(RunDirError, match=r"name one of its runs, as in .*lr/0"):
        find_run([])
    folder = tmp_path / "shared/two"
    make_run(folder / "sft", sent=False)
    (folder / PIPELINE_FILE).write_text("sft: +exp=sft_tiny\n")
    remember(folder, [])
    assert main(["status"]) == 0
    assert "sft" in capsys.readouterr().out
    with pytest.raises(RunDirError, match="name one stage of the pipeline"):
        find_run([])


@pytest.mark.parametrize("verb", ["status", "logs", "report", "cancel", "resume", "samples"])
def test_commands_suggest_similar_run(tmp_path: Path, verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "shared/sort-20261121")
    assert main([verb, "sort-20261122"]) != 0
    assert f"did you mean {run}?" in capfd.readouterr().err


def test_cancel_calls_launcher_if_last_run_does_not_respond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run, asked = make_run(tmp_path / "shared/hanging", "5"), list[Path]()
    with monkeypatch.context() as responding:
        responding.setattr(cancel, "cancel_runs", lambda runs: len(list(runs)))
        assert main(["cancel", "5"]) == 0
    assert f"stopping after a save: {run}" in capfd.readouterr().err
    monkeypatch.setattr(cancel, "run_in_child", lambda work, path: None)
    monkeypatch.setattr(cancel, "cancel_unseen", lambda run: asked.append(run.path) or ["process 5"])
    assert main(["cancel"]) == 0 and main(["cancel", "hanging"]) == 0
    assert asked == [run, run]


def test_remember_writes_private_bounded_file(tmp_path: Path) -> None:
    for number in range(105):
        remember(tmp_path / str(number), [str(number)])
    assert state_file().stat().st_mode & 0o777 == 0o600
    assert state_file().parent.stat().st_mode & 0o777 == 0o700
    entries = json.loads(state_file().read_text())
    assert len(entries) == 100 and entries[0]["jobs"] == ["104"]


@pytest.mark.parametrize("text", ["[", "3", "[3]", '[{"path": 3}]', '[{"path": "a", "jobs": 1, "time": "x"}]'])
def test_read_recent_ignores_damaged_file(text: str, tmp_path: Path) -> None:
    state_file().parent.mkdir(parents=True)
    state_file().write_text(text)
    assert read_recent() == []
    remember(tmp_path, ["1"])
    assert [known.path for known in read_recent()] == [str(tmp_path)]

    state_file().unlink()
    state_file().parent.rmdir()
    state_file().parent.touch()
    remember(tmp_path, ["1"])  # the folder cannot be written
    assert read_recent() == []
