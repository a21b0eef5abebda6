from pathlib import Path
from typing import Any

import pytest

from slurm_rl.launch.controller.ends import find_lost_nodes, load_ends, read_end, settle_killed_attempts
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, write_json

SRUN = """srun: error: n2: task 1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=5.1
srun: error: n1: task 0: Killed
"""


def make_attempt(tmp_path: Path, number: int = 1) -> AttemptDir:
    attempt = RunDir(tmp_path).attempt(number)
    attempt.logs.mkdir(parents=True)
    return attempt


def say(attempt: AttemptDir, text: str) -> None:
    attempt.log("srun").write_text(text)


LOST = {"outcome": "failed", "exit_code": 1, "cause": "rollout-0 must live"}
"""A trainer that only reports the loss of an actor."""


@pytest.mark.parametrize(
    ("said", "error", "outcome", "cause"),
    [
        (SRUN, None, None, "n2: task 1: Killed; see {logs}"),
        ("srun: error: n2: task 1: Exited with exit code 1\n", "no free port", None, "n2: no free port; see {logs}"),
        (SRUN, None, LOST, "n2: task 1: Killed; rollout-0 must live"),
        ("", "raylet died", LOST, "n2: raylet died; rollout-0 must live"),
    ],
)
def test_read_end_names_first_cause(
    tmp_path: Path, said: str, error: str | None, outcome: dict[str, Any] | None, cause: str
) -> None:
    attempt = make_attempt(tmp_path)
    say(attempt, said)
    if error:
        write_json(attempt.node(1), {"host": "n2", "state": "ended", "error": error})
    if outcome:
        write_json(attempt.outcome, outcome)
    end = read_end(attempt, 137, asked=False)
    assert (end.outcome, end.cause) == ("failed", cause.format(logs=attempt.logs))


def test_bad_input_on_one_node_ends_run(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path)
    write_json(attempt.node(1), {"host": "n2", "state": "ended", "error": "another image", "exit_code": 2})
    assert read_end(attempt, 1, asked=False).exit_code == 2
    write_json(attempt.outcome, {"outcome": "failed", "exit_code": 1, "cause": "rollout-0 must live"})
    assert read_end(attempt, 1, asked=False).exit_code == 2


def test_unrequested_save_is_node_failure(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path)
    say(attempt, SRUN)
    write_json(attempt.outcome, {"outcome": "checkpointed", "exit_code": 75})
    assert read_end(attempt, 75, asked=False).outcome == "failed"
    assert read_end(attempt, 75, asked=True).outcome == "checkpointed"


def test_early_or_vain_stop_is_no_failure(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path)
    assert read_end(attempt, 1, asked=True).cause == "stopped before the trainer had started"
    write_json(attempt.node(0), {"host": "n1", "state": "ended", "phases": {"running": 1.0}})
    end = read_end(attempt, 1, asked=True)
    assert end.outcome == "lost"
    assert end.cause.startswith("not all was saved in time")


def test_lost_nodes_are_named_from_slurm(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path)
    say(attempt, "srun: error: Node failure on n7\n")
    assert find_lost_nodes(attempt) == ["n7"]


def test_attempts_of_killed_controller_get_end(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for number, job in ((1, "7"), (2, "8")):
        write_json(make_attempt(tmp_path, number).start, {"job": job})
    (run.checkpoints / "step-12").mkdir(parents=True)
    assert settle_killed_attempts(run, "8") == [2]
    assert settle_killed_attempts(run, "8") == []
    assert [(end.outcome, end.saved_step) for end in load_ends(run, "8")] == [("lost", 12)]
