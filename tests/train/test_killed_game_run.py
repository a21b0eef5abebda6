"""SIGKILL a run of episodes in every turn of a step and at random times, with real Ray, vLLM and torch on CPU."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_rl.node.stall_detector import read_beats
from slurm_rl.run_dir.jsonl import read_rows
from tests.killed_game.game import TIMEOUT_S, Game
from tests.killed_game.modes import MODES, Mode
from tests.killed_game.run_state import RunState
from tests.train.test_killed_parts_run import find_beats

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
LONG = ("trainer.num_steps=12", "eval.interval=6")
KILLS = 5
"""Number of random kills for each of SEEDS."""
SEEDS = range(4)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Game]:
    """Undisturbed runs by their overrides; free order has the tokens of waves."""
    found: dict[tuple[str, ...], Game] = {}

    def find(mode: Mode, *words: str) -> Game:
        key = (*words, *mode.reference)
        if key not in found:
            found[key] = Game(tmp_path_factory.mktemp("whole"), *key)
            found[key].finish()
        return found[key]

    return find


@pytest.mark.parametrize("name", MODES)
def test_kill_in_every_turn_keeps_metrics(name: str, tmp_path: Path, undisturbed: Callable[..., Game]) -> None:
    """In turns 0, 1, 2 and 3 of the third step, resumed each time."""
    mode, states = MODES[name], list[RunState]()
    game = Game(tmp_path, *mode.words)
    for turn in range(4):
        game.kill_in(2, turn, saved=2 if name == "async" else 0)
        states.append(mode.read_state(game))
        assert any(at.step == 2 and at.turn == turn for at in states[-1].sampled)
    game.finish()
    mode.check(game, states, undisturbed(mode))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", MODES)
def test_agents_killed_at_random_moments_resume_to_same_tokens(
    name: str, seed: int, tmp_path: Path, undisturbed: Callable[..., Game]
) -> None:
    """Kill the trainer or the whole run, in turns, training, evaluation or a save."""
    mode, chance, states, num_kills = MODES[name], random.Random(seed), list[RunState](), 0
    game = Game(tmp_path / "run-0", *LONG, *mode.words)
    while num_kills < KILLS:
        if game.kill_after(chance.randint(20, 3000), chance.uniform(0.0, 1.5), whole=chance.random() < 0.5):
            num_kills += 1
            states.append(mode.read_state(game))
        else:
            mode.check(game, states, undisturbed(mode, *LONG))
            game, states = Game(tmp_path / f"run-{num_kills}", *LONG, *mode.words), []
    game.finish()
    mode.check(game, states, undisturbed(mode, *LONG))


@pytest.mark.parametrize("name", ["lockstep", "lockstep-ahead", "async"])
def test_run_stopped_in_turn_resumes_with_identical_metrics(
    name: str, tmp_path: Path, undisturbed: Callable[..., Game]
) -> None:
    """Its checkpoint holds the current batch, or in free order its journal."""
    mode = MODES[name]
    game = Game(tmp_path, *mode.words)
    game.hold(2, 1)
    process = game.start()
    game.wait(process, lambda: game.held is not None, "the third step")
    game.send_stop_signal()
    game.release()
    if process.wait(timeout=TIMEOUT_S) != 0:
        game.finish()
    outcomes = [row["outcome"] for row in read_rows(game.run.events) if row["kind"] == "attempt/ended"]
    assert outcomes == ["checkpointed", "finished"]
    mode.check(game, [], undisturbed(mode))


@pytest.mark.parametrize("name", ["lockstep", "async"])
def test_game_continues_after_engine_is_replaced(name: str, tmp_path: Path, undisturbed: Callable[..., Game]) -> None:
    mode = MODES[name]
    game = Game(tmp_path, *mode.words)
    game.hold(2, 0)
    process = game.start()
    game.wait(process, lambda: game.held is not None, "the third step")
    folder = find_beats(game.run)
    assert folder is not None
    [engine] = [beat.pid for beat in read_beats(folder, time.monotonic()) if beat.name == "rollout-0"]
    game.release()
    os.kill(engine, signal.SIGKILL)
    assert process.wait(timeout=TIMEOUT_S) == 0, game.output
    assert game.run.attempt_numbers() == [1]
    assert [row["engine"] for row in read_rows(game.run.events) if row["kind"] == "engine/replaced"] == ["rollout-0"]
    mode.check(game, [], undisturbed(mode))
