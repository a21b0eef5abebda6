from pathlib import Path
from typing import Any

import pytest

from slurm_rl.launch.controller.attempts import AttemptEnd, decide, explain_failure
from slurm_rl.launch.controller.ends import find_lost_nodes, load_ends, read_end, settle_killed_attempts
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, write_json

SRUN = """srun: error: n2: task 1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=5.1
srun: error: n1: task 0: Killed
"""


def make_attempt(tmp_path: Path, number: int = 1, said: str = "") -> AttemptDir:
    attempt = RunDir(tmp_path).attempt(number)
    attempt.logs.mkdir(parents=True)
    attempt.log("srun").write_text(said)
    return attempt


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
    attempt = make_attempt(tmp_path, said=said)
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
    attempt = make_attempt(tmp_path, said=SRUN)
    write_json(attempt.outcome, {"outcome": "checkpointed", "exit_code": 75})
    assert read_end(attempt, 75, asked=False).outcome == "failed"
    assert read_end(attempt, 75, asked=True).outcome == "checkpointed"
    # An external trainer that kept its own deadline before the limit.
    write_json(attempt.outcome, {"outcome": "checkpointed", "exit_code": 75, "at_limit": True})
    end = read_end(attempt, 75, asked=False)
    assert end.outcome == "checkpointed" and end.at_limit


def test_early_or_vain_stop_is_no_failure(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path)
    assert read_end(attempt, 1, asked=True).cause == "stopped before the trainer had started"
    write_json(attempt.node(0), {"host": "n1", "state": "ended", "phases": {"running": 1.0}})
    end = read_end(attempt, 1, asked=True)
    assert end.outcome == "lost"
    assert end.cause.startswith("not all was saved in time")


def test_attempts_of_killed_controller_get_end(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for number, job in ((1, "7"), (2, "8")):
        write_json(make_attempt(tmp_path, number, "srun: error: Node failure on n7\n").start, {"job": job})
    (run.checkpoints / "step-12").mkdir(parents=True)
    assert find_lost_nodes(run.attempt(2)) == ["n7"]
    assert settle_killed_attempts(run, {"8"}) == [2]
    assert settle_killed_attempts(run, {"8"}) == []
    assert [(end.outcome, end.saved_step) for end in load_ends(run, {"8"})] == [("lost", 12)]


def ends(*rows: tuple[Any, int]) -> list[AttemptEnd]:
    """Return ends by outcome and saved step; `input` is a failure by bad input."""
    codes = {"failed": 1, "input": 2}
    return [
        AttemptEnd("failed" if outcome in codes else outcome, "why", codes.get(outcome, 0), step)
        for outcome, step in rows
    ]


@pytest.mark.parametrize(
    ("rows", "stopped_by", "max_failures", "has_nodes", "expected"),
    [
        ([("finished", 9)], "user", 0, True, "finish"),
        ([("checkpointed", 5)], "user", 0, True, "interrupt"),
        ([("lost", -1)], "user", 0, True, "interrupt"),
        ([("checkpointed", 5)], "scheduler", 0, True, "requeue"),
        ([("checkpointed", 5), ("checkpointed", 5), ("lost", 5)], "scheduler", 0, True, "fail"),
        ([("lost", -1)], "scheduler", 0, True, "requeue"),
        ([("lost", -1), ("lost", -1)], "scheduler", 0, True, "fail"),
        ([("checkpointed", 5)], "", 0, True, "interrupt"),
        ([("failed", 5)], "", 0, True, "fail"),
        ([("failed", 5)], "", 1, True, "retry"),
        ([("failed", 5)], "scheduler", 1, True, "requeue"),
        ([("failed", 5), ("failed", 7)], "", 1, True, "fail"),
        ([("failed", -1), ("failed", -1)], "", 9, True, "fail"),
        ([("failed", -1), ("failed", 3)], "", 9, True, "retry"),
        ([("input", -1)], "", 9, True, "fail"),
        ([("lost", 5)], "", 0, True, "retry"),
        ([("lost", 5)], "", 0, False, "requeue"),
    ],
)
def test_decide_follows_ends(rows: Any, stopped_by: Any, max_failures: int, has_nodes: bool, expected: str) -> None:
    found = decide(ends(*rows), stopped_by=stopped_by, max_failures=max_failures, has_nodes=has_nodes)
    assert found == expected


def test_lack_of_progress_is_explained() -> None:
    text = explain_failure(ends(("failed", 4), ("failed", 4), ("lost", 4)))
    assert text == "two attempts in a row reached no new checkpoint (step 4 is the newest); the last one: why"
    assert explain_failure(ends(("failed", 4))) == "why"


def test_unstarted_attempts_count_after_many() -> None:
    unfit = AttemptEnd("lost", "n2 is unfit", has_begun=False)
    for number in (1, 2, 5):
        assert decide([unfit] * number, stopped_by="", max_failures=0, has_nodes=False) == "requeue"
    assert decide([unfit] * 6, stopped_by="", max_failures=0, has_nodes=False) == "fail"
    trained = AttemptEnd("lost", saved_step=3)
    assert decide([trained, unfit, trained], stopped_by="", max_failures=0, has_nodes=False) == "requeue"
    again = [trained, unfit, trained, unfit, trained]
    assert decide(again, stopped_by="", max_failures=0, has_nodes=False) == "fail", "what began made no progress"
