"""Three sources in one run by the README, and killed and resumed, with real Ray, vLLM and torch on CPU."""

from pathlib import Path

import pytest

from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.grpo.rollout_files import replay_groups
from tests.docs.metrics_page import find_unexplained
from tests.examples.kit import run_readme
from tests.killed_game.game import SIZES, Game
from tests.killed_game.run_state import check_kept, read_state
from tests.tiny_models import shrink
from tests.whole_run import exact_rows

# Warm up the initial model until it produces digits.
FIRST = (shrink("calculator/model"), "supervised.max_steps=60")
HEATED = ("+data.sources.games.temperature=0.6", "+data.sources.calculator.temperature=1.3")
"""With a wrong temperature for a source, the logprob mismatch would be tenths of a nat."""
SOURCES = {"sums": 5, "games": 10, "calculator": 10}
"""Number of held-out rows by source."""


def test_mixture(tmp_path: Path) -> None:
    sizes = (*SIZES["mixture"], *HEATED, "algorithm.kl.coef=0.001")
    run_readme("mixture", tmp_path, {"calls_tiny": FIRST, "mixture_tiny": sizes})
    rows = exact_rows(tmp_path / "runs/mixture")
    assert find_unexplained({key for row in rows for key in row}) == set()
    steps = [row for row in rows if row["stage"] == "grpo"]
    assert len(steps) == 4
    assert steps[0]["kl/reference"] < 1e-9, "the policy is still the reference, at the temperatures of both"
    for row in steps:
        # All sources have prompts, logprobs of engine and policy agree, and the policy changes.
        prompts = [row[f"source/{name}/prompts"] for name in SOURCES]
        assert sum(prompts) == 64 and min(prompts) > 8
        assert row["mismatch/max"] < 1e-4 and row["policy/grad_norm"] > 0
        assert 0 < row["episode/masked"] < 0.5
    [*_, evaluated] = [row for row in rows if row["stage"] == "eval"]
    right = sum(num_rows * evaluated[f"source/{name}/sampled"] for name, num_rows in SOURCES.items())
    assert abs(evaluated["accuracy/sampled"] - right / sum(SOURCES.values())) < 1e-9
    samples = read_rows(RunDir(tmp_path / "runs/mixture").samples)
    assert {row["row"].split("/")[0] for row in samples} == set(SOURCES)


@pytest.mark.slow
def test_killed_mixture_has_identical_metrics(tmp_path: Path) -> None:
    run_readme("mixture", tmp_path, {"calls_tiny": FIRST, "mixture_tiny": (*SIZES["mixture"], "rollout.dump=true")})
    whole = RunDir(tmp_path / "runs/mixture")
    rows = exact_rows(whole.path)
    # Games of the fourth step are in their third turn and sums have been sampled; the checkpoint is of step 2.
    killed = Game(tmp_path / "killed", f"model.path={tmp_path / 'runs/first/export'}", example="mixture")
    killed.kill_in(3, 2)
    left = read_state(killed, waves=True, ahead=0)
    assert {(at.step, at.turn) for at in left.sampled} >= {(3, 0), (3, 1), (3, 2)}
    killed.finish()
    assert exact_rows(killed.run.path) == rows
    check_kept(left, killed)
    for step in range(4):  # rows of all sources in order
        assert replay_groups(killed.run.rollouts, step) == replay_groups(whole.rollouts, step)
