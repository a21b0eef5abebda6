"""Adapters with the packages themselves: gymnasium is installed here, others are in an environment of their own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.endpoint.programs import ADAPTERS, find_argv
from tests.adapters_python import adapters_python
from tests.unit.rl.test_programs import Engine, play_prompts


@pytest.mark.slow
def test_tasks_of_reasoning_gym_make_rows_and_score_replies() -> None:
    python = adapters_python("reasoning-gym==0.1.25")
    rows = [python, str(ADAPTERS / "play_reasoning_gym.py"), "rows", "spell_backward", "3", "--head", "no" * 2]
    made = subprocess.run(rows, capture_output=True, text=True, check=True).stdout
    found = [json.loads(line) for line in made.splitlines()]
    assert len(found) == 3 and made == subprocess.run(rows, capture_output=True, text=True, check=True).stdout
    prompts = [
        EncodedPrompt(index=i, token_ids=[63], text=row["prompt"], answer=row["answer"], info={"entry": row["entry"]})
        for i, row in enumerate(found)
    ]
    engine = Engine(say=lambda text: next(row["answer"] for row in found if row["prompt"] in text))
    argv = find_argv([python, "adapter:reasoning_gym"])
    right = play_prompts(prompts, argv, engine, rows=8)
    wrong = play_prompts(prompts, argv, Engine(say=lambda text: "?"), rows=8)
    assert [result.value for group in right for result in group.results] == [1.0] * 6
    assert all((result.value or 0.0) < 0.5 and result.failure is None for group in wrong for result in group.results)


def test_an_environment_of_gymnasium_is_played() -> None:
    pytest.importorskip("gymnasium", reason="it comes with the extra dev")
    argv = find_argv([sys.executable, "adapter:gymnasium", "FrozenLake-v1", "--words", '{"is_slippery": false}'])
    prompts = [EncodedPrompt(index=0, token_ids=[63], text="?", answer="")]
    # Down, down, right, right, down, right: past the holes of the map of four by four, from field 0 to 15.
    steps = {"?0": "1", "?014": "1", "?01418": "2", "?0141829": "2", "?0141829210": "1", "?0141829210114": "2"}
    [group] = play_prompts(prompts, argv, Engine(say=lambda text: steps[text]), rows=8)
    assert [(result.value, result.parts) for result in group.results] == [(1.0, {"steps": 6.0})] * 2
