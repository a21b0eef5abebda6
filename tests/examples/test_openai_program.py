"""Train an external program that uses the `openai` package, by its README, with real Ray, vLLM and torch on CPU."""

from pathlib import Path

import pytest

from tests.docs.metrics_page import find_unexplained
from tests.examples.kit import run_readme
from tests.tiny_models import shrink
from tests.whole_run import exact_rows

SIZES = (
    shrink("guessing_game/model"),
    "trainer.num_steps=2",
    "data.num_eval=10",
    "eval.interval=2",
    "eval.num_samples=1",
)
SIZES += ("trainer.prompts_per_step=8", "algorithm.group_size=4", "env.agent_concurrency=2")


@pytest.mark.slow
def test_program_is_trained(tmp_path: Path) -> None:
    printed = run_readme("openai_program", tmp_path, {"openai_program_tiny": SIZES})
    assert "step 2, reward" in printed and "turn 1" in printed and "observation" in printed
    rows = exact_rows(tmp_path / "runs/openai_program")
    assert find_unexplained({key for row in rows for key in row}) == set()
    steps = [row for row in rows if row["stage"] == "grpo"]
    assert len(steps) == 2 and all(row["reward/failed"] == 0 for row in steps)
    assert all(1 < row["episode/turns_mean"] <= 4 and 0 < row["episode/masked"] < 0.5 for row in steps)
    # Engine and policy logprobs agree in all turns.
    assert all(row["mismatch/max"] < 1e-4 for row in steps) and all(row["policy/grad_norm"] > 0 for row in steps)
