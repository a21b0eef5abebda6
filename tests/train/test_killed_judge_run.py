"""A judge (reward model) is killed during a run: its worker, then its service; real Ray, vLLM and torch."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from tests.train.conftest import build_reward_model
from tests.whole_run import exact_rows, find_processes, finish, start_run, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def judge_overrides(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Overrides of a run with completions scored by a model."""
    model = build_reward_model(tmp_path_factory.mktemp("judge"))
    return (f"reward.model.path={model}", "trainer.num_steps=20", "ray.dashboard=false")


@pytest.fixture(scope="module")
def undisturbed(judge_overrides: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model runs in a worker of the trainer."""
    run_dir = tmp_path_factory.mktemp("judged") / "run"
    finish(start_run(run_dir, *judge_overrides))
    return run_dir


def test_killed_judge_is_replaced_with_same_metrics(
    judge_overrides: tuple[str, ...], undisturbed: Path, tmp_path: Path
) -> None:
    run = RunDir(tmp_path / "run")
    process = start_run(run.path, *judge_overrides, "reward.service.enabled=true")

    def has_steps(count: int) -> bool:
        return sum(row.get("stage") == "grpo" for row in read_rows(run.metrics)) >= count

    wait_for(lambda: has_steps(2), "two steps", process)
    [service] = [row["pid"] for row in events(run, "reward/service_up")]
    kill_at_work(find_worker(service), process)
    steps = len(read_rows(run.metrics))
    wait_for(lambda: len(read_rows(run.metrics)) >= steps + 3, "three more steps", process)
    assert not events(run, "reward/service_died"), "its worker alone was killed"
    os.kill(service, signal.SIGKILL)
    finish(process)
    assert run.attempt_numbers() == [1] and not find_processes(run.path)
    assert [row["how"] for row in events(run, "reward/service_died")] == ["exit status -9"]
    assert len(events(run, "reward/service_up")) == 2
    rows = exact_rows(run.path)
    assert len({row["score/model"] for row in rows if row["stage"] == "grpo"}) > 10, "one score would prove nothing"
    assert rows == exact_rows(undisturbed)


def events(run: RunDir, kind: str) -> list[dict[str, Any]]:
    return [row for row in read_rows(run.events) if row["kind"] == kind]


def find_worker(service: int) -> int:
    """Return the process with the model: a child of the server that forks the service's workers."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    [worker] = [pid for pid, parent in parents.items() if parents.get(parent) == service]
    return worker


def kill_at_work(pid: int, process: subprocess.Popen[str]) -> None:
    """Kill it while it scores, detected by its CPU time: it uses none while idle."""
    schedstat = Path(f"/proc/{pid}/schedstat")
    began = int(schedstat.read_text().split()[0])
    wait_for(lambda: int(schedstat.read_text().split()[0]) > began + 3e6, "it to compute", process, pause_s=0.001)
    os.kill(pid, signal.SIGKILL)
