import json
from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.plugins.report.episodes import render_episodes

SINGLE = {"step": 1, "prompt": "3+4=", "completion": "7", "answer": "7", "reward": 1.0}
GAME = {
    "step": 2,
    "prompt": "?",
    "completion": "3",
    "answer": "3",
    "reward": 0.5,
    "turns": [
        {"start": 0, "end": 1, "reply": "6", "observation": "<", "reward": None},
        {"start": 2, "end": 3, "reply": "3", "observation": "", "reward": 0.5},
    ],
}
FAILED = {"step": 2, "prompt": "?", "completion": "\x1b[2J", "answer": "", "reward": None}


def test_turns_are_in_order_with_text_and_reward() -> None:
    assert render_episodes([GAME]).splitlines() == [
        "step 2, reward 0.5, answer '3'",
        "  prompt       '?'",
        "  turn 1       '6'",
        "  observation  '<'",
        "  turn 2       '3'   reward 0.5",
    ]


def test_single_turn_and_failed_one_are_episodes() -> None:
    assert "turn 1       '7'" in render_episodes([SINGLE])
    assert render_episodes([FAILED]).startswith("step 2, reward failed\n")


def test_newest_step_is_shown_and_others_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text("{}")
    assert main(["samples", str(tmp_path)]) == 2
    assert "after its first step was logged" in capsys.readouterr().err
    lines = [json.dumps(row) for row in (SINGLE, GAME, FAILED)]
    (tmp_path / "samples.jsonl").write_text("\n".join([*lines, "torn {"]) + "\n")
    assert main(["samples", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("step 2") == 2 and "step 1" not in shown and "\x1b" not in shown
    assert main(["samples", str(tmp_path), "--step", "1"]) == 0
    assert "'3+4='" in capsys.readouterr().out
    assert main(["samples", str(tmp_path), "--step", "9"]) == 2
    assert "from 1 to 2" in capsys.readouterr().err


def test_tool_calls_are_followed_by_results() -> None:
    made = {"name": "add", "arguments": '{"a": 1}', "result": "2=", "error": None}
    wrong = {"name": "", "arguments": "[add(", "result": "Error: cut", "error": "cut"}
    turns = [
        {"reply": "[add(a=1)][add(", "observation": "2=\nError: cut", "reward": None, "calls": [made, wrong]},
        {"reply": "2", "observation": "", "reward": 1.0, "calls": []},
    ]
    assert render_episodes([{**GAME, "turns": turns}]).splitlines()[2:] == [
        "  turn 1       '[add(a=1)][add('",
        "  call         'add({\"a\": 1})' -> '2='",
        "  call         '([add()' -> cut: 'Error: cut'",
        "  turn 2       '2'   reward 1",
    ]
