import secrets
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.models.checkpoint import final_copy
from slurm_rl.models.checkpoint.final_copy import copy_attempt
from slurm_rl.models.checkpoint.remote import RemoteFolder
from slurm_rl.node.agent import copy_out
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir, append_event, write_json


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Return a run after a failed attempt."""
    run = RunDir(tmp_path / "run")
    attempt = run.attempt(1)
    attempt.logs.mkdir(parents=True)
    attempt.log("driver").write_text("step 3\n")
    write_json(attempt.node(0), {"phases": {"starting": 1_000_000_000.5}})
    write_json(attempt.outcome, {"outcome": "failed", "exit_code": 1})
    append_event(run, "attempt/started", attempt=1)
    run.config.write_text("name: a\n")
    return run


def remote_of(url: str) -> RemoteFolder:
    return RemoteFolder(url, key=lambda: "k" * 32, retry_s=())


def plan_of(run: RunDir, *words: str) -> JobPlan:
    facts = SubmitFacts(python=sys.executable, num_cpus=2, version="0")
    return build_plan(load_config(["+exp=command", *words]), str(run.path), facts)


def test_failure_uploads_logs_and_success_also_model(run: RunDir, tmp_path: Path) -> None:
    remote = remote_of(f"memory://{secrets.token_hex(4)}/run")
    run.export.mkdir()
    (run.export / "model.safetensors").write_bytes(bytes(1000))
    name = "attempt-1-20010909-014640"
    assert copy_attempt(run, run.attempt(1), remote) == [name]
    remote.download(name, tmp_path / "back", tmp_path / "beside")
    assert (tmp_path / "back/logs/driver.log").read_text() == "step 3\n"
    assert {path.name for path in (tmp_path / "beside").iterdir()} == {"config.yaml", "events.jsonl"}

    write_json(run.attempt(1).outcome, {"outcome": "finished", "exit_code": 0})
    assert copy_attempt(run, run.attempt(1), remote) == [name, "export"]
    files = remote.download("export", tmp_path / "model", tmp_path / "none")
    assert files["model.safetensors"]["size"] == 1000
    assert [row["what"] for row in read_rows(run.events) if row["kind"] == "run/copied"] == [name, name, "export"]
    assert remote.steps() == [], "neither is taken for a checkpoint"


def test_special_files_are_not_copied(run: RunDir) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(run.attempt(1).logs / "ray.sock"))
        (run.attempt(1).logs / "elsewhere").symlink_to("/etc/hostname")
        remote = remote_of(f"memory://{secrets.token_hex(4)}/run")
        [name] = copy_attempt(run, run.attempt(1), remote)
    assert not [path for path in remote.fs.find(f"{remote.root}/{name}") if "sock" in path or "elsewhere" in path]


def test_renamed_record_is_skipped(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node's agent renames its record after the folder is listed."""
    beside, record = run.attempt(1).node(1).with_name(".node-1.json.a1b2"), run.attempt(1).node(1)
    beside.write_text("{}")
    ignore = final_copy._no_plain_files

    def ignore_then_rename(folder: str, names: list[str]) -> set[str]:
        ignored = ignore(folder, names)
        beside.replace(record) if beside.exists() else None
        return ignored

    monkeypatch.setattr(final_copy, "_no_plain_files", ignore_then_rename)
    remote = remote_of(f"memory://{secrets.token_hex(4)}/run")
    [name] = copy_attempt(run, run.attempt(1), remote)
    assert remote.is_complete(name)


def test_unreadable_log_is_no_copy(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final_copy, "_no_plain_files", lambda folder, names: set())
    (run.attempt(1).logs / "nowhere").symlink_to("/nowhere/at/all")
    with pytest.raises(OSError, match="nowhere"):
        copy_attempt(run, run.attempt(1), remote_of(f"memory://{secrets.token_hex(4)}/run"))


@pytest.mark.parametrize("is_writable", [True, False])
def test_agent_copies_and_reports_refusing_bucket(run: RunDir, tmp_path: Path, is_writable: bool) -> None:
    (tmp_path / "bucket").touch() if not is_writable else None
    plan = plan_of(run, f"checkpoint.upload_url='file://{tmp_path}/bucket'")
    copy_out(run, plan, run.attempt(1), 300.0)
    rows = [row for row in read_rows(run.events) if row["kind"].startswith("run/")]
    assert [row["kind"] for row in rows] == ["run/copied" if is_writable else "run/copy_failed"]
    assert is_writable or "must let itself be" in rows[0]["cause"]
    assert len(list(tmp_path.glob("bucket/run/attempt-1-*/complete.json"))) == int(is_writable)


def test_slow_copy_is_ended(run: RunDir, tmp_path: Path) -> None:
    copy_out(run, plan_of(run, f"checkpoint.upload_url='file://{tmp_path}/bucket'"), run.attempt(1), 0.0)
    assert "not done within 0 s" in read_rows(run.events)[-1]["cause"]


def test_missing_url_starts_nothing(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    copy_out(run, plan_of(run), run.attempt(1), 300.0)
