"""The multi-turn game by its README, and killed and resumed, with real Ray, vLLM and torch on CPU."""

from pathlib import Path

import pytest

from tests.docs.metrics_page import find_unexplained
from tests.examples.kit import run_readme
from tests.killed_game.game import SIZES, Game
from tests.killed_game.run_state import effects, find_turns, read_state, read_trained
from tests.whole_run import exact_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guessing_game")
    printed = run_readme("guessing_game", folder, {"guessing_game_tiny": SIZES["guessing_game"]})
    assert "step 4, reward" in printed and "turn 1" in printed and "observation" in printed
    return folder


@pytest.mark.slow
def test_guessing_game(folder: Path) -> None:
    rows = exact_rows(folder / "runs/guessing_game")
    assert find_unexplained({key for row in rows for key in row}) == set()
    steps = [row for row in rows if row["stage"] == "grpo"]
    assert len(steps) == 4
    assert all(1 < row["episode/turns_mean"] <= 4 and 0 < row["episode/masked"] < 0.5 for row in steps)
    # Engine and policy logprobs agree in all turns.
    assert all(row["mismatch/max"] < 1e-4 for row in steps) and all(row["policy/grad_norm"] > 0 for row in steps)


@pytest.mark.slow
def test_killed_game_has_identical_metrics(folder: Path, tmp_path: Path) -> None:
    """tests/train/test_killed_game_run.py kills in every turn, at random times, and in free order."""
    rows = exact_rows(folder / "runs/guessing_game")
    killed = Game(tmp_path / "killed", environment="HeldGuess")
    # In the third turn of the fourth step; the newest checkpoint is of step 2.
    killed.kill_in(3, 2)
    known = read_state(killed, waves=True, ahead=0).sampled
    assert {(at.step, at.turn) for at in known} >= {(3, 0), (3, 1), (3, 2)} and all(at[::3] != (3, 3) for at in known)
    killed.finish()
    assert exact_rows(killed.run.path) == rows
    trained = read_trained(killed.run)
    assert known.items() <= trained.items()
    # The repeated step and the interrupted turn called their environments with the same call ids.
    assert sorted(find_turns(killed, effects(killed.seen))) == sorted(trained)
