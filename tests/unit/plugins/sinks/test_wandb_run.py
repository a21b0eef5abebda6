"""The real wandb package, offline or against a server that never responds."""

import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_rl.config.job import LoggingConfig, WandbConfig
from slurm_rl.plugins.sinks import wandb_run
from slurm_rl.plugins.sinks.run_id import load_id
from slurm_rl.plugins.sinks.stream import MetricRow
from slurm_rl.plugins.sinks.wandb_run import WandbRun, find_key, open_wandb
from slurm_rl.run_dir.event_text import read_events
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.common.metrics_log import MetricsLogger

CANARY = "0123456789abcdef0123456789abcdefcanary00"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide the developer's key, server and home directory."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def silent_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A W&B server that accepts connections and never responds."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield


def wandb_events(run: RunDir) -> list[dict[str, Any]]:
    return [event for event in read_events(run) if event["kind"].startswith("wandb/")]


def test_auto_without_key_is_disabled_and_writes_nothing(run: RunDir) -> None:
    assert open_wandb(run, WandbConfig(mode="auto"), "addition", {}) is None
    assert not run.path.exists()


def test_key_is_read_from_netrc_of_server(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_key() is None
    netrc = own_home / ".netrc"
    netrc.write_text(f"machine api.wandb.ai login user password {CANARY}\n")
    netrc.chmod(0o600)
    assert find_key() == CANARY
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert find_key() is None


def test_offline_attempts_share_id_and_have_no_key(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", CANARY)
    logger = MetricsLogger(run, LoggingConfig(wandb=WandbConfig(mode="offline")), "addition", {"optim": {"lr": 0.5}})
    logger.log(1, "grpo", {"reward/mean": 0.25})
    logger.close()
    (written,) = run.wandb.glob(f"wandb/offline-run-*-{load_id(run)}/*.wandb")
    assert b"reward/mean" in written.read_bytes()
    assert [path for path in run.path.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()] == []

    monkeypatch.delenv("WANDB_API_KEY")
    opened = open_wandb(run, WandbConfig(mode="online"), "addition", {})
    assert opened is not None
    opened.close()
    first, offline, started = wandb_events(run)
    assert (first["kind"], first["mode"], started["mode"]) == ("wandb/started", "offline", "offline")
    assert "WANDB_API_KEY" in offline["cause"]
    assert {path.name for path in run.wandb.glob("wandb/offline-run-*/*.wandb")} == {written.name}


@pytest.mark.usefixtures("silent_server")
def test_silent_server_is_bounded_and_run_continues_offline(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", CANARY)
    monkeypatch.setattr(wandb_run, "INIT_TIMEOUT_S", 1.0)
    opened = open_wandb(run, WandbConfig(mode="auto"), "addition", {})
    assert opened is not None
    opened.log(MetricRow(1, "grpo", {"reward/mean": 0.25}, 0.0))
    opened.close()
    offline, started = wandb_events(run)
    assert offline["kind"] == "wandb/offline"
    assert offline["sync"] == f"wandb sync --id {load_id(run)} {run.wandb}/wandb/offline-run-*"
    assert started["mode"] == "offline"
    assert list(run.wandb.glob("wandb/offline-run-*/*.wandb"))
    assert [path for path in run.path.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()] == []


def test_image_without_package_trains_all_same(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", CANARY)
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert open_wandb(run, WandbConfig(mode="online"), "addition", {}) is None
    assert [event["kind"] for event in wandb_events(run)] == ["wandb/offline", "wandb/failed"]


def test_failure_is_reported_once_without_key_and_closing_ends(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb_run, "STOP_TIMEOUT_S", 0.1)
    monkeypatch.setattr("wandb.teardown", lambda: threading.Event().wait(600))
    monkeypatch.setenv("WANDB_API_KEY", CANARY)

    def fail(values: dict[str, float], step: int) -> None:
        raise BrokenPipeError(f"service is gone, key {CANARY}")

    # It has no `finish`: a run that failed is not touched again.
    broken = WandbRun(run, SimpleNamespace(settings=SimpleNamespace(sync_dir="/runs/a/wandb/run-1"), log=fail))
    broken.log(MetricRow(1, "grpo", {"reward/mean": 0.5}, 0.0))
    broken.log(MetricRow(2, "grpo", {"reward/mean": 0.5}, 0.0))
    began = time.monotonic()
    broken.close()
    assert time.monotonic() - began < 100
    (event,) = wandb_events(run)
    assert event["cause"] == "BrokenPipeError: service is gone, key <key>"
    assert event["sync"] == "wandb sync /runs/a/wandb/run-1"
