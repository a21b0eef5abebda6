"""What ended an agent before it could write a record."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.plan.job import JobPlan, SubmitFacts, build_plan
from slurm_rl.plan.setup import with_setup
from slurm_rl.run_dir import AttemptDir, RunDir, read_json
from slurm_rl.slurm.ends import find_causes
from slurm_rl.slurm.silent import explain, settle_silent_agent, settle_silent_tasks


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    attempt = RunDir(tmp_path).attempt(1)
    attempt.logs.mkdir(parents=True)
    return attempt


@pytest.fixture(scope="module")
def plan() -> JobPlan:
    return build_plan(
        load_config(["+exp=demo", "+cluster=slurm_cpu"]), "/runs/a", SubmitFacts("/env/bin/python", 2, "1")
    )


def test_a_setup_line_that_fails_ends_the_command_and_says_which() -> None:
    argv = with_setup(["true", "echo 'a  \"b\" $HOME' >&2; (exit 7)"], ["echo", "started"])
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "")
    assert explain(done.stderr.splitlines()[-1], 7, "python").endswith(
        "(exit 7). Next: correct it, or what it needs on that node"
    )
    assert subprocess.run(with_setup(["X=1", "export X"], ["sh", "-c", "exit $X"])).returncode == 1


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("slurmstepd-n1: error: execve(): /v/python: No such file or directory", 2, "/v/python must be there"),
        ("/bin/bash: line 2: exec: /v/python: not found", 127, "/v/python must be there"),
        ("ModuleNotFoundError: No module named 'slurm_rl'", 1, "/v/python must have what slurm_rl needs"),
        ("Illegal instruction", 132, "never started (exit status 132): Illegal instruction"),
        ("", 1, "no word"),
    ],
)
def test_last_words_become_a_cause(words: str, status: int, said: str) -> None:
    assert said in explain(words, status, "/v/python")


def test_the_task_that_never_spoke_is_named_by_its_node(plan: JobPlan, attempt: AttemptDir) -> None:
    """Task 0 of srun need not be our rank 0."""
    attempt.log("task-0").write_text("loading modules\n/env/bin/python: No such file or directory\n")
    settle_silent_tasks(plan, attempt, ["n1", "n2"], ["n2: task 0: Exited with exit code 127", "n1: task 1: Killed"])
    assert not attempt.node(0).is_file()
    (cause,) = find_causes(attempt)
    assert cause.startswith("n2: /env/bin/python must be there on every node")


def test_an_agent_that_spoke_keeps_its_word(plan: JobPlan, attempt: AttemptDir) -> None:
    log = attempt.log("node-0")
    settle_silent_agent(plan, attempt, 0, "here", log, 0)
    assert not attempt.node(0).is_file()
    settle_silent_agent(plan, attempt, 0, "here", log, 3)
    settle_silent_agent(plan, attempt, 0, "elsewhere", log, 4)
    assert (read_json(attempt.node(0))["host"], "exit status 3" in read_json(attempt.node(0))["error"]) == (
        "here",
        True,
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ('cluster.setup=["module load cuda"]', "each line of cluster.setup and container.setup must succeed"),
        ("cluster.python=/nowhere/python", "/nowhere/python must be there on every node"),
    ],
)
def test_a_run_on_this_machine_names_the_cause(tmp_path: Path, words: str, said: str) -> None:
    run = tmp_path / "run"
    argv = [sys.executable, "-m", "slurm_rl", "+exp=demo", f"run_dir={run}", words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert said in done.stderr and said in read_json(run / "end.json")["cause"]
