"""A rollout engine killed or stopped during a run, with real Ray, vLLM and torch on CPU."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from slurm_rl.node.heartbeat import HEARTBEATS
from slurm_rl.node.stall_detector import read_beats
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from tests.whole_run import exact_rows, find_processes, start_run

pytestmark = pytest.mark.slow


def wait_for_engine(run: RunDir, process: subprocess.Popen[str], *, is_known: bool) -> int:
    """Return the engine's pid while it samples, after two steps.

    Args:
        is_known: wait until it has finished enough calls to have a deadline.
    """
    return wait_for_phase(run, process, "rollout-0", "generate", 5 if is_known else 0)


def wait_for_phase(run: RunDir, process: subprocess.Popen[str], name: str, phase: str, num_calls: int = 0) -> int:
    """Return an actor's pid while it is in this phase by its heartbeats, after two steps.

    Args:
        num_calls: number of calls finished before.
    """
    deadline, folder = time.monotonic() + 600, None
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        if folder is None:
            time.sleep(0.05)
            has_trained = len([row for row in read_rows(run.metrics) if row.get("stage") == "grpo"]) >= 2
            folder = find_beats(run) if has_trained else None
            continue
        for beat in read_beats(folder, time.monotonic()):
            if (beat.name, beat.phase) == (name, phase) and beat.num_calls >= num_calls:
                return beat.pid
        time.sleep(0.001)
    raise AssertionError(f"{name} was never seen in {phase}")


def find_beats(run: RunDir) -> Path | None:
    """Return the folder of the heartbeats; None before it exists."""
    for pid in find_processes(run.path):
        with contextlib.suppress(OSError):
            for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if variable.startswith(f"{HEARTBEATS}=".encode()):
                    return Path(os.fsdecode(variable.partition(b"=")[2]))
    return None


def finish(run: RunDir, process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Return the events of a run that finished in its first attempt."""
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    assert run.attempt_numbers() == [1]
    assert not find_processes(run.path)
    return [row for row in read_rows(run.events) if row["kind"] == "engine/replaced"]


def test_killed_engine_is_replaced_with_same_metrics(whole_run: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "killed")
    process = start_run(run.path, "ray.dashboard=false")
    os.kill(wait_for_engine(run, process, is_known=False), signal.SIGKILL)
    [event] = finish(run, process)
    assert event["engine"] == "rollout-0" and event["count"] == 1
    assert exact_rows(run.path) == exact_rows(whole_run)


def test_stopped_engine_is_replaced_with_same_metrics(whole_run: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "stopped")
    process = start_run(run.path, "ray.dashboard=false", "job.heartbeat_timeout_s=5")
    os.kill(wait_for_engine(run, process, is_known=True), signal.SIGSTOP)
    [event] = finish(run, process)
    assert "no sign of life" in event["cause"]
    assert exact_rows(run.path) == exact_rows(whole_run)


def test_engine_with_direct_transfer_is_replaced(whole_run: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "direct")
    process = start_run(run.path, "ray.dashboard=false", "rollout.weight_transfer=gloo", "trainer.num_steps=12")
    os.kill(wait_for_engine(run, process, is_known=False), signal.SIGKILL)
    events = finish(run, process)
    assert [event["count"] for event in events] == [1]


def test_asynchronous_engine_is_replaced_after_kill(whole_run: Path, tmp_path: Path) -> None:
    """The killed process is vLLM's EngineCore, a child of the actor, which lives until it notices."""
    run = RunDir(tmp_path / "asynchronous")
    options = "rollout.inflight_weight_updates=true", "rollout.max_off_policy_steps=1", "trainer.num_steps=12"
    process = start_run(run.path, "ray.dashboard=false", *options)
    actor = psutil.Process(wait_for_phase(run, process, "rollout-0", "generate", 0))
    [core] = [child for child in actor.children(recursive=True) if "EngineCore" in child.name()]
    core.kill()
    [event] = finish(run, process)
    assert event["engine"] == "rollout-0" and event["count"] == 1
    assert [row["step"] for row in read_rows(run.metrics) if row.get("stage") == "grpo"] == list(range(41, 53))
