"""A run of external programs is killed or stopped while they play, with real Ray, vLLM and torch on CPU."""

from pathlib import Path

import pytest

from slurm_rl.run_dir.jsonl import read_rows
from tests.killed_game.game import TIMEOUT_S
from tests.killed_game.modes import MODES, Mode
from tests.killed_game.program_game import ProgramGame
from tests.whole_run import exact_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
FREE = MODES["async"]
"""Programs have the guarantees of free order, except for the order of turns in the journal."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> ProgramGame:
    game = ProgramGame(tmp_path_factory.mktemp("whole"))
    game.finish()
    return game


def test_kill_in_two_turns_resumes_with_identical_metrics(tmp_path: Path, undisturbed: ProgramGame) -> None:
    game, states = ProgramGame(tmp_path), []
    for turn in (0, 2):
        game.kill_in(2, turn, saved=2)
        states.append(FREE.read_state(game))
        assert any((at.step, at.turn) == (2, turn) for at in states[-1].sampled)
    game.finish()
    FREE.check(game, states, undisturbed)
    opened = [row for row in read_rows(game.run.events) if row["kind"] == "journal/opened"]
    assert len(opened) == 2 and not any(row["kind"] == "journal/program_changed" for row in read_rows(game.run.events))


def test_run_stopped_in_turn_resumes_with_identical_metrics(tmp_path: Path, undisturbed: ProgramGame) -> None:
    """Its checkpoint does not wait for programs."""
    game = ProgramGame(tmp_path)
    game.hold(2, 1)
    process = game.start()
    game.wait(process, lambda: game.held is not None, "the third step")
    game.send_stop_signal()
    assert process.wait(timeout=TIMEOUT_S) != 0
    left = FREE.read_state(game)
    game.release()
    assert left.saved == 2 and left.sampled
    game.finish()
    outcomes = [row["outcome"] for row in read_rows(game.run.events) if row["kind"] == "attempt/ended"]
    assert outcomes == ["checkpointed", "finished"]
    FREE.check(game, [left], undisturbed)


def test_killed_run_ahead_keeps_turns_of_saved_policy(tmp_path: Path) -> None:
    """Killed while a batch plays ahead of the trained one; new weights wait for its programs."""
    ahead = Mode(("rollout.max_off_policy_steps=1", "checkpoint.interval=1"), waves=False, ahead=1)
    game = ProgramGame(tmp_path, *ahead.words)
    game.kill_in(2, 1, saved=1)
    left = ahead.read_state(game)
    assert left.saved == 1 and {at.step for at in left.sampled} == {1, 2}
    game.finish()
    ahead.check(game, [left], game)
    steps = [row for row in exact_rows(game.run.path) if row["stage"] == "grpo"]
    assert [row["rollout/staleness"] for row in steps] == [0, 1, 1, 1]
