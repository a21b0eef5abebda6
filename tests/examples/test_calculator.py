"""A sum that only the calculator can do: both stages by its README. Real Ray, vLLM and torch on CPU; minutes."""

from pathlib import Path

import pytest

from tests.docs.metrics_page import find_unexplained
from tests.examples.kit import run_readme
from tests.whole_run import exact_rows

pytestmark = pytest.mark.slow


def test_calculator(tmp_path: Path) -> None:
    # The first stage as it is: of a shorter one no sum comes out right, and there is nothing to train on.
    sizes = ("trainer.num_steps=2", "trainer.prompts_per_step=16", "data.num_eval=20", "eval.interval=2")
    printed = run_readme("calculator", tmp_path, {"calls_tiny": (), "calculator_tiny": sizes})
    assert "step 2, reward" in printed and "turn 1" in printed
    rows = exact_rows(tmp_path / "runs/calculator")
    assert find_unexplained({key for row in rows for key in row}) == set()
    steps = [row for row in rows if row["stage"] == "grpo"]
    assert len(steps) == 2 and all(row["tools/calls_mean"] > 0 and row["episode/turns_mean"] > 1 for row in steps)
    assert all(0 < row["reward/mean"] < 1 for row in steps)
    # Over calls and results the policy says of each sampled token what the engine said.
    assert all(row["mismatch/max"] < 1e-4 for row in steps)
