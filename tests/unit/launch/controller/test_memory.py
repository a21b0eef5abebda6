"""Out-of-memory errors of torch, the kernel and Slurm are retried once with less memory."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from slurm_rl.cli.status import render_status
from slurm_rl.launch.controller.allocation import IsStopped, Nodes
from slurm_rl.launch.controller.attempts import AttemptEnd, decide
from slurm_rl.launch.controller.controller import Controller
from slurm_rl.launch.controller.ends import remedy_memory
from slurm_rl.node.oom import (
    KERNEL,
    RanOut,
    count_oom_kills,
    find_out_of_memory,
    is_out_of_memory,
    note_out_of_memory,
)
from slurm_rl.node.stop import run_to_outcome
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, read_json, write_json
from slurm_rl.trainers.common.remedy import load_plan
from slurm_rl.workers.ray_driver import name_failure
from tests.storage.writers import demo_plan
from tests.unit.launch.controller.test_requeue import Few, Finished

CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"


def make_run(folder: Path) -> RunDir:
    run = RunDir(folder)
    write_json(run.plan, demo_plan(run).to_json())
    return run


def run_out(run: RunDir, attempt: AttemptDir, error: BaseException) -> None:
    def train(*_: object) -> None:
        raise error

    assert run_to_outcome(run, attempt, train) == 1


def of_a_worker(error: Exception, name: str, what: str) -> BaseException:
    """Return the driver's exception after a Ray actor ran out of memory."""
    import ray

    return name_failure(ray.exceptions.RayTaskError("train", "traceback", error), name, what)


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError(CUDA), True),
        (torch.cuda.OutOfMemoryError(CUDA), True),
        (RuntimeError("HIP out of memory. Tried to allocate 20.00 MiB"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory"), True),
        (MemoryError(), True),
        (RuntimeError("shape '[2]' is invalid for input of size 3"), False),
        (ValueError("CUDA out of memory"), False),
        (None, False),
    ],
)
def test_out_of_memory_is_detected_by_class_and_text(error: BaseException | None, is_one: bool) -> None:
    assert is_out_of_memory(error) is is_one


def test_torch_error_has_expected_name() -> None:
    """torch's allocator raises this class."""
    assert torch.cuda.OutOfMemoryError is torch.OutOfMemoryError and issubclass(torch.OutOfMemoryError, RuntimeError)
    assert torch.OutOfMemoryError.__name__ == "OutOfMemoryError"
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


class Trainer(Few):
    """A trainer in this process; each attempt runs the next function."""

    has_nodes, notice = True, None

    def __init__(self, run: RunDir, *attempts: Callable[[AttemptDir], object]) -> None:
        super().__init__(run, "finished")
        self.attempts = list(attempts)

    def start(self, attempt: AttemptDir, is_stopped: IsStopped) -> Nodes | None:
        self.attempts.pop(0)(attempt)
        return Finished()


def out_of(run: RunDir, name: str = "policy-1") -> Callable[[AttemptDir], object]:
    error = of_a_worker(torch.OutOfMemoryError(CUDA), name, "train of the policy")
    return lambda attempt: run_out(run, attempt, error)


def finish(attempt: AttemptDir) -> None:
    write_json(attempt.outcome, {"outcome": "finished", "exit_code": 0})


def lead(run: RunDir, *attempts: Callable[[AttemptDir], object]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the run's end and its memory events; allow no failures."""
    plan = load_plan(run)
    assert plan.limits.max_failures == 0
    Controller(run, plan, Trainer(run, *attempts))._lead()
    return read_json(run.end), [row for row in read_rows(run.events) if row["kind"] == "run/out_of_memory"]


def test_first_out_of_memory_halves_micro_batches(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    before = load_plan(run).layout.micro_batch_tokens
    sizes = []

    def second(attempt: AttemptDir) -> None:
        sizes.append(load_plan(run).layout.micro_batch_tokens)
        finish(attempt)

    end, [event] = lead(run, out_of(run), second)
    assert end["state"] == "finished" and sizes == [before // 2]
    assert event["where"] == "policy-1 in train of the policy"
    assert event["remedy"] == f"policy.micro_batch_tokens={before // 2}, half of {before}"
    assert f"policy.micro_batch_tokens={before // 2}" in render_status(run)


def test_second_out_of_memory_fails_with_phase_and_key(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    end, events = lead(run, out_of(run), out_of(run))
    assert end["state"] == "failed" and len(events) == 2
    for word in ("train of the policy", "policy-1", "policy.micro_batch_tokens", "already", "CUDA out of memory"):
        assert word in end["cause"], word


def test_memory_remedy_precedes_no_progress_rule() -> None:
    ends = [AttemptEnd("lost", "n1"), AttemptEnd("failed", "out of memory", 1, remedy="smaller")]
    assert decide(ends, stopped_by="", max_failures=0) == "retry"
    assert decide(ends, stopped_by="scheduler", max_failures=0) == "requeue"
    assert decide(ends, stopped_by="user", max_failures=0) == "interrupt"
    assert decide([*ends, AttemptEnd("failed", "again", 1)], stopped_by="", max_failures=0) == "fail"
    further = AttemptEnd("failed", "a crash", 1, saved_step=5)
    assert decide([*ends, further], stopped_by="", max_failures=1) == "retry", "an end with a remedy is no failure"


def test_torchrun_rank_reports_its_memory_error(tmp_path: Path) -> None:
    """Rank 0 writes the outcome and only reports that another rank exited."""
    run = make_run(tmp_path / "run")
    attempt = run.attempt(1)
    attempt.logs.mkdir(parents=True)

    def train(*_: object) -> None:
        raise torch.OutOfMemoryError(CUDA)

    assert run_to_outcome(run, attempt, train, writes=False) == 1
    assert not attempt.outcome.exists()
    end = remedy_memory(run, load_plan(run), attempt, AttemptEnd("failed", "Connection closed by peer", 1))
    assert end.remedy and "out of memory" in end.cause


def test_count_oom_kills_reads_both_versions_of_cgroups(tmp_path: Path) -> None:
    own, cgroups = tmp_path / "own", tmp_path / "cgroups"
    for text, path, file in (
        ("0::/job_8/step_0\n", "job_8/step_0", "low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n"),
        ("9:name=systemd:/\n4:memory:/job_8\n0::/\n", "memory/job_8", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"),
    ):
        own.write_text(text)
        (cgroups / path).mkdir(parents=True)
        name = "memory.oom_control" if path.startswith("memory/") else "memory.events"
        (cgroups / path / name).write_text(file)
    assert count_oom_kills(own, cgroups) == 5
    own.write_text("0::/job_8/step_0\n")
    assert count_oom_kills(own, cgroups) == 2
    assert count_oom_kills(tmp_path / "none", cgroups) == 0


def test_other_ends_are_unchanged(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    attempt = run.attempt(1)
    attempt.logs.mkdir(parents=True)
    note_out_of_memory(attempt, RanOut("n1", "", "the kernel"))
    plan = replace(load_plan(run))
    for end in (AttemptEnd("finished"), AttemptEnd("checkpointed"), AttemptEnd("failed", "input", 2)):
        assert remedy_memory(run, plan, attempt, end) == end
    assert "torch" in sys.modules and not run.remedy.exists()


AGENT = ("memory-n1.json", json.dumps({"name": "n1", "phase": "", "seen": KERNEL}))
SRUN = ("logs/srun.log", "srun: error: n1: task 0: Out Of Memory\nsrun: Terminating StepId=8.0\n")
STEPD = "slurmstepd: error: Detected 1 oom_kill event in StepId=8.0. Some of the step tasks have been OOM Killed.\n"


@pytest.mark.parametrize(
    "files",
    [
        [AGENT],
        [SRUN],
        [("logs/srun.log", STEPD)],
        [("logs/task-0.log", STEPD)],
        [AGENT, SRUN, ("logs/task-0.log", STEPD)],
    ],
)
def test_kernel_kill_has_one_cause(tmp_path: Path, files: list[tuple[str, str]]) -> None:
    run = make_run(tmp_path / "run")
    attempt = run.attempt(1)
    attempt.logs.mkdir(parents=True)
    write_json(attempt.node(0), {"host": "n1", "rank": 0})
    for name, text in files:
        (attempt.path / name).write_text(text)
    assert find_out_of_memory(attempt) == [RanOut("n1", "", KERNEL)]


@pytest.mark.parametrize(
    ("found", "changed", "says", "has_remedy"),
    [
        (RanOut("n1", "", KERNEL), {}, "policy.micro_batch_tokens", True),  # on CPU
        (RanOut("n1", "", KERNEL), {"accelerator": "nvidia"}, "cluster.mem_gb_per_node", False),
        (RanOut("policy-0", "train", CUDA), {"accelerator": "nvidia"}, "policy.micro_batch_tokens", True),
        (RanOut("rollout-0", "load", CUDA), {"accelerator": "nvidia"}, "rollout.gpu_memory_utilization", False),
        (RanOut("n1", "", KERNEL), {"external": object()}, "external.args", False),
    ],
)
def test_remedy_memory_advises_keys_of_task(
    tmp_path: Path, found: RanOut, changed: dict[str, Any], says: str, has_remedy: bool
) -> None:
    run = make_run(tmp_path / "run")
    attempt = run.attempt(1)
    attempt.logs.mkdir(parents=True)
    note_out_of_memory(attempt, found)
    end = remedy_memory(run, replace(load_plan(run), **changed), attempt, AttemptEnd("failed", "killed", 1))
    assert says in end.cause and bool(end.remedy) is has_remedy
    if not has_remedy:
        assert "micro_batch_tokens" not in end.cause


def test_find_out_of_memory_prefers_process_to_node(tmp_path: Path) -> None:
    attempt = make_run(tmp_path / "run").attempt(1)
    attempt.logs.mkdir(parents=True)
    for found in (RanOut("a1", "", KERNEL), RanOut("policy-1", "train", CUDA), RanOut("policy-0", "train", CUDA)):
        note_out_of_memory(attempt, found)
    assert [one.name for one in find_out_of_memory(attempt)] == ["policy-0", "policy-1", "a1"]
