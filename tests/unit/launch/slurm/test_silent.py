"""Causes of agents that ended without a record."""

import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_rl.launch.controller.agents import agent_environment, explain, settle_late_agents, settle_silent_agent
from slurm_rl.launch.controller.ends import find_causes, read_end
from slurm_rl.launch.controller.watch import AttemptWatch
from slurm_rl.launch.slurm import allocation
from slurm_rl.launch.slurm.commands import JobInfo
from slurm_rl.launch.slurm.launcher import explain_silent_job
from slurm_rl.launch.slurm.srun import settle_silent_tasks
from slurm_rl.launch.slurm.states import JobState
from slurm_rl.plan.container import with_setup
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.step import wrap_agent
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, read_json, write_json
from tests.plans import plan_of


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    attempt = RunDir(tmp_path).attempt(1)
    attempt.logs.mkdir(parents=True)
    return attempt


@pytest.fixture(scope="module")
def plan() -> JobPlan:
    return plan_of("+cluster=slurm_cpu", python="/env/bin/python")


def test_failing_setup_line_ends_command_and_is_named() -> None:
    argv = with_setup(["true", "echo 'a  \"b\" $HOME' >&2; (exit 7)"], ["echo", "started"])
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "")
    assert explain(done.stderr.splitlines()[-1], 7, "python").endswith(
        "(exit 7). Next: correct it, or install its requirements on that node"
    )
    assert subprocess.run(with_setup(["X=1", "export X"], ["sh", "-c", "exit $X"])).returncode == 1


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("slurmstepd-n1: error: execve(): /v/python: No such file or directory", 2, "/v/python must be there"),
        ("/bin/bash: line 2: exec: /v/python: not found", 127, "/v/python must be there"),
        ("ModuleNotFoundError: No module named 'slurm_rl'", 1, "/v/python must have the packages that slurm_rl needs"),
        ("Illegal instruction", 132, "never started (exit status 132): Illegal instruction"),
        ("", 1, "no word"),
    ],
)
def test_last_words_become_cause(words: str, status: int, said: str) -> None:
    assert said in explain(words, status, "/v/python")


def test_silent_task_is_named_by_node(plan: JobPlan, attempt: AttemptDir) -> None:
    """Task 0 of srun may differ from our rank 0."""
    attempt.log("task-0").write_text("loading modules\n/env/bin/python: No such file or directory\n")
    settle_silent_tasks(plan, attempt, ["n1", "n2"], ["n2: task 0: Exited with exit code 127", "n1: task 1: Killed"])
    assert not attempt.node(0).is_file()
    (cause,) = find_causes(attempt)
    assert cause.startswith("n2: /env/bin/python must be there on every node")


NO_SOURCE = """slurmstepd-c1: error: pyxis: --container-mounts: source path does not exist: /nowhere/data
slurmstepd-c1: error: pyxis: printing enroot log file:
slurmstepd-c1: error: pyxis:     [INFO] Extracting squashfs filesystem...
slurmstepd-c1: error: pyxis:     
slurmstepd-c1: error: pyxis:     created 4 files
slurmstepd-c1: error: pyxis: container was not started successfully by another task
slurmstepd-c1: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1
slurmstepd-c1: error: Failed to invoke spank plugin stack
"""
NO_REGISTRY = """slurmstepd-a1: error: pyxis: child 413 failed with error code: 6
slurmstepd-a1: error: pyxis: failed to import docker image: localhost/nowhere:1
slurmstepd-a1: error: pyxis:     [INFO] Querying registry for permission grant
slurmstepd-a1: error: pyxis:     curl: (6) Could not resolve host: registry-1.docker.io
slurmstepd-a1: error: Failed to invoke spank plugin stack
"""


@pytest.mark.parametrize(
    ("runtime", "words", "said", "is_input"),
    [
        ("pyxis", NO_SOURCE, "source path does not exist: /nowhere/data", False),
        ("pyxis", NO_REGISTRY, "curl: (6) Could not resolve host", False),
        ("pyxis", "slurmstepd: error: execve(): python3: No such file or directory\n", "execve(): python3", True),
        ("podman", "Error: crun: executable file `python3` not found in $PATH: No such file\n", "python3", True),
        ("podman", "Traceback:\n  (code)\nImportError: cannot import name 'UTC' from 'datetime'\n", "'UTC'", True),
        ("podman", "Error: localhost/rl:1: image not known\n", "image not known", False),
    ],
)
def test_unstartable_image_is_named_with_runtime_message(
    attempt: AttemptDir, runtime: str, words: str, said: str, is_input: bool
) -> None:
    """A program missing from the image is not retried."""
    told = ["+cluster=slurm_cpu", f"container.runtime={runtime}", "container.image=/images/rl.sqsh"]
    plan = plan_of(*told, python="/env/bin/python")
    for task in (0, 1):
        attempt.log(f"task-{task}").write_text(words)
    attempt.log("srun").write_text("srun: error: n1: task 0: Exited with exit code 1\n")
    both = ["n1: task 0: Exited with exit code 1", "n2: task 1: Exited with exit code 1"]
    settle_silent_tasks(plan, attempt, ["n1", "n2"], both)
    end = read_end(attempt, 1, asked=False)
    assert said in end.cause and f"n1, n2: the image must start and have python3 ({runtime} /images/rl" in end.cause
    assert "image build" in end.cause
    assert not [noise for noise in ("spank: required", "[INFO]", "created 4", "child 413") if noise in end.cause]
    assert (end.outcome, end.exit_code) == ("failed", 2 if is_input else 1)


def test_unstarted_agents_end_attempt_at_deadline(plan: JobPlan, attempt: AttemptDir) -> None:
    """An image that never arrives. The record of the started agent is kept."""
    hurried = replace(plan, num_nodes=2, limits=replace(plan.limits, start_timeout_s=0.0))
    write_json(attempt.node(0), {"host": "n1", "rank": 0, "state": "ended"})
    nodes = subprocess.Popen(["sleep", "600"])
    allocation: Any = SimpleNamespace(num_agents=hurried.num_nodes)
    watch = AttemptWatch(RunDir(attempt.path), hurried, attempt, nodes, allocation)
    watch.look(is_stopped=False)
    assert nodes.wait() == -signal.SIGTERM and watch.is_late
    settle_late_agents(hurried, attempt, ["n1", "n2"])
    (cause,) = find_causes(attempt)
    assert cause.startswith("n2: the node agent must start within 0 s (job.start_timeout_s)")


def test_reported_cause_of_agent_is_kept(plan: JobPlan, attempt: AttemptDir) -> None:
    log = attempt.log("node-0")
    settle_silent_agent(plan, attempt, 0, "here", log, 0)
    assert not attempt.node(0).is_file()
    settle_silent_agent(plan, attempt, 0, "here", log, 3)
    settle_silent_agent(plan, attempt, 0, "elsewhere", log, 4)
    record = read_json(attempt.node(0))
    assert record["host"] == "here" and "exit status 3" in record["error"]


@pytest.mark.parametrize("element", [None, "3"])
def test_started_controller_gets_no_cause_from_log(
    plan: JobPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, element: str | None
) -> None:
    """Slurm logs an array element as `12_3`, while its own job id is another number."""
    monkeypatch.setattr(allocation, "Hosts", lambda run, plan: None)
    monkeypatch.setattr(allocation, "kill_wait_s", lambda: 30.0)
    monkeypatch.setenv("SLURM_JOB_ID", "15")
    if element:
        monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "12")
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", element)
    run = RunDir(tmp_path)
    write_json(run.plan, plan.to_json())
    job_id = f"12_{element}" if element else "15"
    run.submitit.mkdir()
    (run.submitit / f"{job_id}_0_log.out").write_text("slurm_rl: attempt 1 failed\n")
    job = JobInfo(job_id, JobState.FAILED, "FAILED", "NonZeroExitCode", "n1", None, None)
    assert "never started" in (explain_silent_job(run, job) or "")
    fields = allocation.SlurmAllocation(run, plan).prepare(run.attempt(1))
    write_json(run.attempt(1).start, {"job": "15", "epoch": 1, **fields})
    assert explain_silent_job(run, job) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "/runs/a/code"),
        ({"PYTHONPATH": ""}, "/runs/a/code"),
        ({"PYTHONPATH": "/site/modules"}, "/runs/a/code:/site/modules"),
        ({"PYTHONPATH": "/runs/a/code:/site/modules"}, "/runs/a/code:/site/modules"),
    ],
)
def test_python_path_of_site_stays_behind_ours_and_outside_container(given: dict[str, str], expected: str) -> None:
    def python_path(*words: str) -> str | None:
        plan = plan_of("+cluster=slurm_cpu", *words)
        return agent_environment(plan, given, wrap_agent(plan, 1, "7", (0, 0))).get("PYTHONPATH")

    assert python_path() == expected
    contained = python_path("container.image=/images/rl.sif", "container.runtime=apptainer")
    assert contained != "/runs/a/code:/site/modules"
