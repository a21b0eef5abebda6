"""A part of a run fails: a rollout engine, a judge (reward model), a teacher, or the disk; the metrics are identical.

With real Ray, vLLM and torch on CPU.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from slurm_rl.launch.controller.ends import newest_step
from slurm_rl.models.checkpoint.store import CheckpointStore
from slurm_rl.node.heartbeat import HEARTBEATS
from slurm_rl.node.stall_detector import read_beats
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir, read_json
from tests.storage.disks import Disk, full, read_only
from tests.tiny_models import SMALL, build_tiny_model
from tests.train.conftest import build_reward_model
from tests.whole_run import events_of, exact_rows, find_processes, finish, stage_rows, start_run, train, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
NO_DASHBOARD = "ray.dashboard=false"


def has_steps(run: RunDir, count: int) -> bool:
    return sum(row.get("stage") == "grpo" for row in read_rows(run.metrics)) >= count


def wait_for_phase(run: RunDir, process: subprocess.Popen[str], name: str, phase: str, num_calls: int = 0) -> int:
    """Return an actor's pid while it is in this phase by its heartbeats, after two steps.

    Args:
        num_calls: number of calls finished before; after five it has a deadline.
    """
    deadline, folder = time.monotonic() + 600, None
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        if folder is None:
            time.sleep(0.05)
            folder = find_beats(run) if has_steps(run, 2) else None
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


def finish_with_replaced_engine(run: RunDir, process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the event of the engine's replacement, in a run that finished in its first attempt."""
    finish(process, timeout_s=900)
    assert run.attempt_numbers() == [1]
    assert not find_processes(run.path)
    [event] = events_of(run.path, "engine/replaced")
    assert event["engine"] == "rollout-0" and event["count"] == 1
    return event


def test_killed_engine_is_replaced_with_same_metrics(whole_run: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "killed")
    process = start_run(run.path, NO_DASHBOARD)
    os.kill(wait_for_phase(run, process, "rollout-0", "generate"), signal.SIGKILL)
    finish_with_replaced_engine(run, process)
    assert exact_rows(run.path) == exact_rows(whole_run)


def test_stopped_engine_is_replaced_with_same_metrics(whole_run: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "stopped")
    process = start_run(run.path, NO_DASHBOARD, "job.heartbeat_timeout_s=5")
    os.kill(wait_for_phase(run, process, "rollout-0", "generate", num_calls=5), signal.SIGSTOP)
    assert "no sign of life" in finish_with_replaced_engine(run, process)["cause"]
    assert exact_rows(run.path) == exact_rows(whole_run)


def test_engine_with_direct_transfer_is_replaced(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "direct")
    process = start_run(run.path, NO_DASHBOARD, "rollout.weight_transfer=gloo", "trainer.num_steps=12")
    os.kill(wait_for_phase(run, process, "rollout-0", "generate"), signal.SIGKILL)
    finish_with_replaced_engine(run, process)


def test_asynchronous_engine_is_replaced_after_kill(tmp_path: Path) -> None:
    """The killed process is vLLM's EngineCore, a child of the actor, which lives until it notices."""
    run = RunDir(tmp_path / "asynchronous")
    options = "rollout.inflight_weight_updates=true", "rollout.max_off_policy_steps=1", "trainer.num_steps=12"
    process = start_run(run.path, NO_DASHBOARD, *options)
    actor = psutil.Process(wait_for_phase(run, process, "rollout-0", "generate"))
    [core] = [child for child in actor.children(recursive=True) if "EngineCore" in child.name()]
    core.kill()
    finish_with_replaced_engine(run, process)
    assert [row["step"] for row in stage_rows(run.path)] == list(range(41, 53))


def test_killed_judge_is_replaced_with_same_metrics(tmp_path: Path) -> None:
    """First its worker is killed, then its service; in the undisturbed run it is in a worker of the trainer."""
    words = (f"reward.model.path={build_reward_model(tmp_path)}", "trainer.num_steps=20", NO_DASHBOARD)
    undisturbed = train(tmp_path / "whole", *words)
    run = RunDir(tmp_path / "run")
    process = start_run(run.path, *words, "reward.service.enabled=true")
    wait_for(lambda: has_steps(run, 2), "two steps", process)
    [service] = [row["pid"] for row in events_of(run.path, "reward/service_up")]
    kill_at_work(find_worker(service), process)
    steps = len(read_rows(run.metrics))
    wait_for(lambda: len(read_rows(run.metrics)) >= steps + 3, "three more steps", process)
    assert not events_of(run.path, "reward/service_died"), "its worker alone was killed"
    os.kill(service, signal.SIGKILL)
    finish(process)
    assert run.attempt_numbers() == [1] and not find_processes(run.path)
    assert [row["how"] for row in events_of(run.path, "reward/service_died")] == ["exit status -9"]
    assert len(events_of(run.path, "reward/service_up")) == 2
    assert len({row["score/model"] for row in stage_rows(run.path)}) > 10, "one score would prove nothing"
    assert exact_rows(run.path) == undisturbed


def find_worker(service: int) -> int:
    """Return the process with the model: a child of the server that forks the service's workers."""
    [worker] = [child for server in psutil.Process(service).children() for child in server.children()]
    return worker.pid


def kill_at_work(pid: int, process: subprocess.Popen[str]) -> None:
    """Kill it while it scores, detected by its CPU time: it uses none while idle."""
    schedstat = Path(f"/proc/{pid}/schedstat")
    began = int(schedstat.read_text().split()[0])
    wait_for(lambda: int(schedstat.read_text().split()[0]) > began + 3e6, "it to compute", process, pause_s=0.001)
    os.kill(pid, signal.SIGKILL)


OWN_WORKER = "reference.num_workers=1"


@pytest.fixture(scope="module")
def teacher_overrides(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Overrides of a policy that learns from another model with its tokenizer; both are random."""
    teacher = tmp_path_factory.mktemp("teacher") / "model"
    build_tiny_model(SMALL, 1, teacher)
    words = ("+algorithm=distill", "algorithm.kl.coef=1.0", "warmup.num_steps=0", NO_DASHBOARD)
    return (*words, f"reference.path={teacher}", "job.max_failures=1")


@pytest.fixture(scope="module")
def taught(teacher_overrides: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return train(tmp_path_factory.mktemp("taught") / "run", *teacher_overrides, OWN_WORKER)


@pytest.mark.parametrize(
    ("words", "holder"), [((OWN_WORKER,), "reference-0"), ((), "policy-0")], ids=["apart", "beside-the-policy"]
)
def test_killed_teacher_costs_one_attempt_and_keeps_metrics(
    words: tuple[str, ...],
    holder: str,
    teacher_overrides: tuple[str, ...],
    taught: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    run = RunDir(tmp_path / "run")
    process = start_run(run.path, *teacher_overrides, *words)
    os.kill(wait_for_phase(run, process, holder, "reference_logprobs"), signal.SIGKILL)
    finish(process)
    assert run.attempt_numbers() == [1, 2] and not find_processes(run.path)
    end = read_json(run.attempt(1).end)
    assert end["outcome"] == "failed" and f"{holder} must live through reference logprobs" in end["cause"], end
    assert all(row["kl/reference"] for row in stage_rows(run.path)), "a teacher like the policy proves nothing"
    assert exact_rows(run.path) == taught


_SMALL_KB = 64 << 10


def a_checkpoint_is_being_written(run: RunDir) -> bool:
    """Return whether a second or later checkpoint is being written."""
    return newest_step(run) >= 0 and any(run.checkpoints.glob(".step-*.tmp*"))


def metrics_grow(run: RunDir) -> bool:
    return sum(row["stage"] == "grpo" for row in read_rows(run.metrics)) >= 3


def logs_begin(run: RunDir) -> bool:
    """Nothing is trained yet: Ray has just started."""
    return any(row["kind"] == "ray/head_ready" for row in read_rows(run.events))


def spoil_when(run: RunDir, disk: Disk, is_time: Callable[[RunDir], bool]) -> int:
    """Spoil the disk when `is_time`; return the newest complete checkpoint, or -1."""
    wait_for(lambda: is_time(run), "the moment never came", pause_s=0.002)
    newest = newest_step(run)
    disk.spoil()
    return newest


@pytest.mark.parametrize(
    ("is_time", "is_full"),
    [
        pytest.param(a_checkpoint_is_being_written, True, id="full-checkpoint"),
        pytest.param(metrics_grow, True, id="full-metrics"),
        pytest.param(logs_begin, True, id="full-logs"),
        pytest.param(a_checkpoint_is_being_written, False, id="read-only-checkpoint"),
    ],
)
def test_run_on_failing_disk_ends_and_resumes_identically(
    whole_run: Path, tmp_path: Path, is_time: Callable[[RunDir], bool], is_full: bool
) -> None:
    with full(tmp_path, _SMALL_KB) if is_full else read_only(tmp_path) as disk:
        run = RunDir(disk.path / "run")
        process = start_run(run.path, "job.max_failures=0")
        whole = spoil_when(run, disk, is_time)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 1, output
        word = "No space left on device" if is_full else "Read-only file system"
        assert word in output and f"{disk.path} has " in output, output
        store = CheckpointStore(run.checkpoints)
        newest = store.latest()
        assert (newest.step if newest else -1) >= whole and not store.skipped
        disk.mend()
        finish(start_run(run.path, verb="resume"))
        assert exact_rows(run.path) == exact_rows(whole_run)
