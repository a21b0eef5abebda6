"""A run on an existing Ray cluster, from the command line to the HTTP requests; the cluster is a fake."""

import io
import json
import os
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.__main__ import main
from slurm_rl.launch.ray import launcher as shipping
from slurm_rl.run_dir.run_dir import read_json
from tests.other_user import STRANGER
from tests.unit.launch.ray.dashboard_kit import TOKEN, FakeCluster, serve

SECRET = "key-that-nobody-may-see"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    with serve() as found:
        yield found


def submit(cluster: FakeCluster, *words: str) -> int:
    return main(["+exp=demo", "+cluster=ray", f"cluster.address={cluster.address}", "run_dir=run", *words])


def job_of(cluster: FakeCluster) -> dict[str, Any]:
    [job] = cluster.jobs.values()
    return job


def test_submit_sends_run_without_secrets(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert submit(cluster, "cluster.remote_root=/shared/runs") == 0
    [(name, content)] = cluster.packages.items()
    request = job_of(cluster)["request"]
    assert request["runtime_env"]["working_dir"] == f"gcs://{name}"
    names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    assert {"run/config.yaml", "run/plan.json", "slurm_rl/launch/ray/allocation.py"} <= set(names)
    assert all(name.startswith(("slurm_rl/", "run/")) and "__pycache__" not in name for name in names)
    assert "slurm_rl.launch.ray.allocation" in request["entrypoint"]
    assert request["metadata"]["run_dir"] == "/shared/runs/run"
    assert int(request["runtime_env"]["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]) >= 10
    job = {"launcher": "ray", "job_id": request["submission_id"], "address": cluster.address}
    assert read_json(Path("run/job.json")) == job
    assert "WANDB_API_KEY: not sent" in capsys.readouterr().err
    package = zipfile.ZipFile(io.BytesIO(content))
    sent = json.dumps(request).encode() + b"".join(map(package.read, names))
    kept = b"".join(path.read_bytes() for path in Path("run").rglob("*") if path.is_file())
    assert [secret for secret in (SECRET, TOKEN) if secret.encode() in sent + kept] == []


def test_package_of_run_is_deterministic_and_sent_once(cluster: FakeCluster) -> None:
    assert submit(cluster) == 0
    job_of(cluster)["status"] = "STOPPED"
    assert main(["resume", "run"]) == 0
    assert len(cluster.jobs) == 2
    assert [path for method, path in cluster.requests if method == "PUT"] == [
        f"/api/packages/gcs/{name}" for name in cluster.packages
    ]


@pytest.mark.parametrize(
    ("state", "message", "code", "word"),
    [
        ("PENDING", "", None, "pending"),
        ("RUNNING", "", None, "running"),
        ("SUCCEEDED", "", 0, "finished"),
        ("FAILED", "no such data", 2, "failed"),
        ("FAILED", "saved", 130, "interrupted"),
    ],
)
def test_status_maps_ray_states(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], state: str, message: str, code: int | None, word: str
) -> None:
    submit(cluster)
    job_of(cluster).update({"status": state, "message": message, "driver_exit_code": code})
    row = {"step": 7, "stage": "grpo", "reward/mean": 0.5}
    cluster.logs = f"loading\nslurm_rl row {json.dumps(row)}\nslurm_rl row {json.dumps({**row, 'stage': 'eval'})}\n"
    assert main(["status", "run"]) == 0
    output = capsys.readouterr().out
    assert f"state   {word}" in output and "step    7" in output and message in output


@pytest.mark.parametrize(
    ("said", "exit_code", "cause"),
    [
        ("sh: 1: exec: python7: not found\nRunning", 127, "python7 must be there on every node; got sh: 1: exec"),
        ("Running entrypoint for job x: exec python7", 127, "python7 must be there on every node; got exit status"),
        ("slurm_rl: the Ray cluster's image must have vllm", 2, "the Ray cluster's image must have vllm"),
    ],
)
def test_cause_before_start_is_kept(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], said: str, exit_code: int, cause: str
) -> None:
    """The run directory is on the cluster or missing, and Ray loses its records with the cluster."""
    submit(cluster, "cluster.python=python7")
    message = f"Job entrypoint command failed with exit code {exit_code}, last available logs (...):\n{said}\n"
    job_of(cluster).update({"status": "FAILED", "message": message, "driver_exit_code": exit_code})
    assert main(["status", "run"]) == 0
    assert f"state   failed: {cause}" in capsys.readouterr().out
    end = read_json(Path("run/end.json"))
    assert (end["state"], end["exit_code"], end["cause"].startswith(cause)) == ("failed", 2, True)


def test_cancel_stops_job_and_status_needs_cluster(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    submit(cluster)
    assert main(["cancel", "run"]) == 0
    assert job_of(cluster)["status"] == "STOPPED"
    assert main(["cancel", "run"]) == 0
    assert "not running" in capfd.readouterr().err
    cluster.override = (503, b"", {})
    assert main(["status", "run"]) == 0
    assert "state   unknown" in capfd.readouterr().out


def test_logs_are_those_of_ray(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    submit(cluster)
    cluster.logs = "first\nlast\n"
    job_of(cluster)["status"] = "SUCCEEDED"
    capsys.readouterr()
    assert main(["logs", "run"]) == main(["logs", "-f", "run"]) == 0
    assert capsys.readouterr().out == "first\nlast\n" * 2
    assert main(["logs", "--who", "node-1", "run"]) == 2


@pytest.mark.parametrize(("token", "words"), [("foreign", "refused the one"), ("", "is not set"), ("ab\nc", "ASCII")])
def test_wrong_token_is_refused_and_leaves_nothing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], token: str, words: str
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    assert submit(cluster) == 2
    said = capsys.readouterr().err
    assert words in said and not (token and token in said) and not Path("run").exists()


def test_token_may_be_in_file(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "token")
    assert submit(cluster) == 2
    Path("token").write_text(TOKEN + "\n")
    assert submit(cluster) == 0


@pytest.mark.parametrize(("backlog", "code", "said"), [(None, 2, "that of a Ray dashboard"), (8, 1, "answer within")])
def test_submit_to_closed_or_silent_port_is_refused(
    backlog: int | None,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("slurm_rl.launch.ray.dashboard._ANSWER_S", 0.1)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if backlog:
            server.listen(backlog)
        address = f"cluster.address=http://127.0.0.1:{server.getsockname()[1]}"
        assert main(["+exp=demo", "+cluster=ray", address, "run_dir=run"]) == code
    assert said in capsys.readouterr().err and not Path("run").exists()


@pytest.mark.parametrize(
    ("override", "code", "words"),
    [
        ((404, b"Not Found", {}), 2, "HTTP 404"),
        ((200, b"<html>", {}), 2, "not JSON"),
        ((200, b"[]", {}), 2, "answer of list"),
        ((200, b"{}", {}), 2, "without ray_version"),
        ((302, b"", {"Location": "http://elsewhere"}), 2, "redirects to http://elsewhere"),
        ((200, b'{"ray_version": "2.33.0"}', {}), 2, "must run Ray 2.60.0, as the trainer does; got 2.33.0"),
        ((503, b"trace\nGCS is away", {}), 1, "GCS is away"),
    ],
)
def test_server_that_is_no_ray_dashboard_is_named(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], override: Any, code: int, words: str
) -> None:
    cluster.override = override
    assert submit(cluster) == code
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("is_taken", "is_silent", "code"), [(True, False, 0), (True, True, 2), (False, True, 2), (False, False, 1)]
)
def test_submit_keeps_directory_of_possibly_accepted_job(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, *, is_taken: bool, is_silent: bool, code: int
) -> None:
    answer = cluster.answer

    def lose_the_answer(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if method != "POST" or path != "/api/jobs/":
            return answer(method, path, body)
        if is_taken:
            answer(method, path, body)
        cluster.override = (503, b"busy", {}) if is_silent else None
        return 504, b"gateway timeout"

    monkeypatch.setattr(cluster, "answer", lose_the_answer)
    assert submit(cluster) == code
    assert Path("run").exists() == (is_taken or is_silent)


def test_oversized_code_is_refused(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shipping, "LIMIT_MB", 0.01)
    assert submit(cluster) == 2
    assert "at most 0.01 MB" in capsys.readouterr().err
    assert cluster.packages == cluster.jobs == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cluster.address=ray://head:10001"], "URL of a Ray dashboard"),
        (["cluster.address=https://me:hunter2@head"], "URL of a Ray dashboard"),
        ([], "go together"),
        (["cluster.address=http://head:8265", "task=sft", "supervised.max_tokens=16"], "task=sft"),
        (["cluster.address=http://head:8265", "job.num_spare_nodes=1"], "job.num_spare_nodes=1"),
        (["cluster.address=http://head:8265", "cluster.remote_root=gs://bucket/runs"], "checkpoint.upload_url"),
        (["cluster.address=http://head:8265", "cluster.remote_root=runs"], "absolute path"),
    ],
)
def test_unsupported_features_of_external_cluster_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "+exp=demo", "+cluster=ray", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "hunter2" not in error


@pytest.mark.parametrize("name", [".", "job.json"])
def test_directory_of_other_user_runs_nothing_and_gets_no_token(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    submit(cluster)
    if os.geteuid() != 0:
        pytest.skip("giving a file away needs root")
    os.chown(Path("run") / name, STRANGER, STRANGER)
    cluster.requests.clear()
    assert main(["status", "run"]) == 0
    assert f"unknown: a run directory must belong to you; got {Path('run').absolute()}" in capsys.readouterr().out
    assert main(["cancel", "run"]) == main(["logs", "run"]) == 2
    os.chown(Path("run") / name, os.geteuid(), os.getegid())
    os.chown("run/plan.json", STRANGER, STRANGER)
    capsys.readouterr()
    for verb in ("resume", "attach", "attach --dashboard"):
        assert main([*verb.split(), "run"]) == 2
        assert "plan.json of " in capsys.readouterr().err
    assert cluster.requests == []


def test_part_inside_cluster_needs_only_standard_library() -> None:
    root = Path(shipping.__file__).parents[3]
    script = f"import sys; sys.path.insert(0, {str(root)!r}); import slurm_rl.launch.ray.allocation"
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
