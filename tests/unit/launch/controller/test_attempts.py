from typing import Any

import pytest

from slurm_rl.launch.controller.attempts import AttemptEnd, decide, explain_failure


def ends(*rows: tuple[Any, int]) -> list[AttemptEnd]:
    return [AttemptEnd(outcome, "why", 1 if outcome == "failed" else 0, step) for outcome, step in rows]


@pytest.mark.parametrize(
    ("rows", "stopped_by", "max_failures", "has_nodes", "expected"),
    [
        ([("finished", 9)], "", 0, True, "finish"),
        ([("finished", 9)], "user", 0, True, "finish"),
        ([("checkpointed", 5)], "user", 0, True, "interrupt"),
        ([("lost", -1)], "user", 0, True, "interrupt"),
        ([("failed", -1)], "user", 0, True, "interrupt"),
        ([("checkpointed", 5)], "scheduler", 0, True, "requeue"),
        ([("checkpointed", 5), ("checkpointed", 5)], "scheduler", 0, True, "requeue"),
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
        ([("lost", 5)], "", 0, True, "retry"),
        ([("lost", 5)], "", 0, False, "requeue"),
    ],
)
def test_table(rows: Any, stopped_by: Any, max_failures: int, has_nodes: bool, expected: str) -> None:
    found = decide(ends(*rows), stopped_by=stopped_by, max_failures=max_failures, has_nodes=has_nodes)
    assert found == expected


def test_bad_input_is_not_retried() -> None:
    assert decide([AttemptEnd("failed", "typo", 2)], stopped_by="", max_failures=9) == "fail"


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
