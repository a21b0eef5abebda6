"""Sums that need the calculator tool: both stages of the README, with real Ray, vLLM and torch on CPU. Takes
minutes.
"""

from pathlib import Path

import pytest

from tests.docs.metrics_page import find_unexplained
from tests.examples.kit import run_readme
from tests.whole_run import exact_rows

pytestmark = pytest.mark.slow


def test_calculator(tmp_path: Path) -> None:
    # The first stage keeps its length: with fewer steps no sum is right and there is no reward signal.
    sizes = ("trainer.num_steps=2", "trainer.prompts_per_step=16", "data.num_eval=20", "eval.interval=2")
    printed = run_readme("calculator", tmp_path, {"calls_tiny": (), "calculator_tiny": sizes})
    assert "step 2, reward" in printed and "turn 1" in printed
    rows = exact_rows(tmp_path / "runs/calculator")
    assert find_unexplained({key for row in rows for key in row}) == set()
    steps = [row for row in rows if row["stage"] == "grpo"]
    assert len(steps) == 2 and all(row["tools/calls_mean"] > 0 and row["episode/turns_mean"] > 1 for row in steps)
    assert all(0 < row["reward/mean"] < 1 for row in steps)
    # Engine and policy logprobs agree across tool calls and results.
    assert all(row["mismatch/max"] < 1e-4 for row in steps)
