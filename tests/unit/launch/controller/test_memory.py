"""Out-of-memory errors of torch, the kernel and Slurm are retried once with less memory."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from slurm_rl.cli.status import render_status
from slurm_rl.launch.controller.allocation import IsStopped, Nodes
from slurm_rl.launch.controller.attempts import AttemptEnd, decide
from slurm_rl.launch.controller.controller import Controller
from slurm_rl.launch.controller.ends import remedy_memory
from slurm_rl.node.oom import KERNEL, RanOut, count_oom_kills, find_out_of_memory, is_out_of_memory, note_out_of_memory
from slurm_rl.node.stop import run_to_outcome
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, read_json, write_json
from slurm_rl.trainers.common.remedy import load_plan
from slurm_rl.workers.ray_driver import name_failure
from tests.plans import demo_plan
from tests.unit.launch.controller.test_requeue import Few

CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Return a run with a plan and the folders of its first attempt."""
    run = RunDir(tmp_path / "run")
    write_json(run.plan, demo_plan(run).to_json())
    run.attempt(1).logs.mkdir(parents=True)
    return run


def run_out(run: RunDir, attempt: AttemptDir, error: BaseException, *, writes: bool = True) -> None:
    def train(*_: object) -> None:
        raise error

    assert run_to_outcome(run, attempt, train, writes=writes) == 1


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError(CUDA), True),
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


class Trainer(Few):
    """A trainer in this process; each attempt runs the next function."""

    has_nodes, notice = True, None

    def __init__(self, run: RunDir, *attempts: Callable[[AttemptDir], object]) -> None:
        super().__init__(run, "finished")
        self.attempts = list(attempts)

    def start(self, attempt: AttemptDir, is_stopped: IsStopped) -> Nodes | None:
        self.attempts.pop(0)(attempt)
        return subprocess.Popen(["true"])


def out_of(run: RunDir) -> Callable[[AttemptDir], object]:
    """Return an attempt that ends with the driver's exception after a Ray actor ran out of memory."""
    cause = ray.exceptions.RayTaskError("train", "traceback", torch.OutOfMemoryError(CUDA))
    error = name_failure(cause, "policy-1", "train of the policy")
    return lambda attempt: run_out(run, attempt, error)


def lead(run: RunDir, *attempts: Callable[[AttemptDir], object]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the run's end and its memory events; allow no failures."""
    plan = load_plan(run)
    assert plan.limits.max_failures == 0
    Controller(run, plan, Trainer(run, *attempts))._lead()
    return read_json(run.end), [row for row in read_rows(run.events) if row["kind"] == "run/out_of_memory"]


def test_first_out_of_memory_halves_micro_batches(run: RunDir) -> None:
    before = load_plan(run).layout.micro_batch_tokens
    sizes = []

    def second(attempt: AttemptDir) -> None:
        sizes.append(load_plan(run).layout.micro_batch_tokens)
        write_json(attempt.outcome, {"outcome": "finished", "exit_code": 0})

    end, [event] = lead(run, out_of(run), second)
    assert end["state"] == "finished" and sizes == [before // 2]
    assert event["where"] == "policy-1 in train of the policy"
    assert event["remedy"] == f"policy.micro_batch_tokens={before // 2}, half of {before}"
    assert f"policy.micro_batch_tokens={before // 2}" in render_status(run)


def test_second_out_of_memory_fails_with_phase_and_key(run: RunDir) -> None:
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


@pytest.mark.parametrize(
    ("error", "end", "has_remedy"),
    [
        # Rank 0 of torchrun writes the outcome and only reports that another rank exited.
        (torch.OutOfMemoryError(CUDA), AttemptEnd("failed", "Connection closed by peer", 1), True),
        (torch.OutOfMemoryError(CUDA), AttemptEnd("failed", "input", 2), False),
        (torch.OutOfMemoryError(CUDA), AttemptEnd("checkpointed"), False),
        (torch.OutOfMemoryError(CUDA), AttemptEnd("finished"), False),
        (ValueError("a bug"), AttemptEnd("failed", "a crash", 1), False),
    ],
)
def test_remedy_memory_needs_failure_and_memory_error(
    run: RunDir, error: Exception, end: AttemptEnd, has_remedy: bool
) -> None:
    attempt = run.attempt(1)
    run_out(run, attempt, error, writes=False)
    assert not attempt.outcome.exists()
    found = remedy_memory(run, load_plan(run), attempt, end)
    assert bool(found.remedy) is ("out of memory" in found.cause) is run.remedy.exists() is has_remedy
    assert has_remedy or found == end


KILLED = ("memory-n1.json", json.dumps({"name": "n1", "phase": "", "seen": KERNEL}))
SRUN = ("logs/srun.log", "srun: error: n1: task 0: Out Of Memory\nsrun: Terminating StepId=8.0\n")
STEPD = "slurmstepd: error: Detected 1 oom_kill event in StepId=8.0. Some of the step tasks have been OOM Killed.\n"


@pytest.mark.parametrize(
    "files",
    [[KILLED], [SRUN], [("logs/srun.log", STEPD)], [KILLED, SRUN, ("logs/task-0.log", STEPD)]],
)
def test_kernel_kill_has_one_cause(run: RunDir, files: list[tuple[str, str]]) -> None:
    attempt = run.attempt(1)
    write_json(attempt.node(0), {"host": "n1", "rank": 0})
    for name, text in files:
        (attempt.path / name).write_text(text)
    assert find_out_of_memory(attempt) == [RanOut("n1", "", KERNEL)]


def test_find_out_of_memory_prefers_process_to_node(run: RunDir) -> None:
    for found in (RanOut("a1", "", KERNEL), RanOut("policy-1", "train", CUDA), RanOut("policy-0", "train", CUDA)):
        note_out_of_memory(run.attempt(1), found)
    assert [one.name for one in find_out_of_memory(run.attempt(1))] == ["policy-0", "policy-1", "a1"]


def test_count_oom_kills_reads_both_versions_of_cgroups(tmp_path: Path) -> None:
    own, cgroups = tmp_path / "own", tmp_path / "cgroups"
    for groups, file, text, number in (
        (
            "9:name=systemd:/\n4:memory:/job_8\n0::/\n",
            "memory/job_8/memory.oom_control",
            "under_oom 0\noom_kill 5\n",
            5,
        ),
        ("0::/job_8/step_0\n", "job_8/step_0/memory.events", "max 3\noom 2\noom_kill 2\noom_group_kill 0\n", 2),
    ):
        own.write_text(groups)
        (cgroups / file).parent.mkdir(parents=True)
        (cgroups / file).write_text(text)
        assert count_oom_kills(own, cgroups) == number
    assert count_oom_kills(tmp_path / "none", cgroups) == 0


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
    run: RunDir, found: RanOut, changed: dict[str, Any], says: str, has_remedy: bool
) -> None:
    attempt = run.attempt(1)
    note_out_of_memory(attempt, found)
    end = remedy_memory(run, replace(load_plan(run), **changed), attempt, AttemptEnd("failed", "killed", 1))
    assert says in end.cause and bool(end.remedy) is has_remedy
    if not has_remedy:
        assert "micro_batch_tokens" not in end.cause
