"""SIGKILL a run of episodes, of an environment or an external program, in every turn of a step and at random times.

With real Ray, vLLM and torch on CPU.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import pytest

from slurm_rl.node.stall_detector import read_beats
from tests.killed_game.game import TIMEOUT_S, Game, ProgramGame
from tests.killed_game.run_state import MODES, Mode, RunState, read_state, read_trained
from tests.train.test_killed_parts_run import find_beats
from tests.whole_run import events_of, exact_rows, stage_rows

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


def outcomes_of(game: Game) -> list[str]:
    return [row["outcome"] for row in events_of(game.run.path, "attempt/ended")]


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
    process = game.start_until_held(2, 1)
    game.send_stop_signal()
    game.release()
    if process.wait(timeout=TIMEOUT_S) != 0:
        game.finish()
    assert outcomes_of(game) == ["checkpointed", "finished"]
    mode.check(game, [], undisturbed(mode))


@pytest.mark.parametrize("name", ["lockstep", "async"])
def test_game_continues_after_engine_is_replaced(name: str, tmp_path: Path, undisturbed: Callable[..., Game]) -> None:
    mode = MODES[name]
    game = Game(tmp_path, *mode.words)
    process = game.start_until_held(2, 0)
    folder = find_beats(game.run)
    assert folder is not None
    [engine] = [beat.pid for beat in read_beats(folder, time.monotonic()) if beat.name == "rollout-0"]
    game.release()
    os.kill(engine, signal.SIGKILL)
    assert process.wait(timeout=TIMEOUT_S) == 0, game.output
    assert game.run.attempt_numbers() == [1]
    assert [row["engine"] for row in events_of(game.run.path, "engine/replaced")] == ["rollout-0"]
    mode.check(game, [], undisturbed(mode))


FREE = MODES["async"]
"""Programs have the guarantees of free order, except for the order of turns in the journal."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> ProgramGame:
    game = ProgramGame(tmp_path_factory.mktemp("whole"))
    game.finish()
    return game


def test_program_killed_in_two_turns_resumes_with_identical_metrics(tmp_path: Path, program: ProgramGame) -> None:
    game, states = ProgramGame(tmp_path), []
    for turn in (0, 2):
        game.kill_in(2, turn, saved=2)
        states.append(FREE.read_state(game))
        assert any((at.step, at.turn) == (2, turn) for at in states[-1].sampled)
    game.finish()
    FREE.check(game, states, program)
    assert len(events_of(game.run.path, "journal/opened")) == 2
    assert not events_of(game.run.path, "journal/program_changed")


def test_program_stopped_in_turn_resumes_with_identical_metrics(tmp_path: Path, program: ProgramGame) -> None:
    """Its checkpoint does not wait for programs."""
    game = ProgramGame(tmp_path)
    process = game.start_until_held(2, 1)
    game.send_stop_signal()
    assert process.wait(timeout=TIMEOUT_S) != 0
    left = FREE.read_state(game)
    game.release()
    assert left.saved == 2 and left.sampled
    game.finish()
    assert outcomes_of(game) == ["checkpointed", "finished"]
    FREE.check(game, [left], program)


def test_killed_run_ahead_keeps_turns_of_saved_policy(tmp_path: Path) -> None:
    """Killed while a batch plays ahead of the trained one; new weights wait for its programs."""
    ahead = Mode(("rollout.max_off_policy_steps=1", "checkpoint.interval=1"), waves=False, ahead=1)
    game = ProgramGame(tmp_path, *ahead.words)
    game.kill_in(2, 1, saved=1)
    left = ahead.read_state(game)
    assert left.saved == 1 and {at.step for at in left.sampled} == {1, 2}
    game.finish()
    ahead.check(game, [left], game)
    assert [row["rollout/staleness"] for row in stage_rows(game.run.path)] == [0, 1, 1, 1]


PPO = (
    "+algorithm=ppo",
    "algorithm.group_size=8",
    "algorithm.kl.coef=0.001",
    "critic.optim.lr=3e-3",
    "critic.warmup_steps=1",
    "trainer.num_minibatches=2",
    "trainer.num_steps=20",
    "eval.interval=20",
)


def test_ppo_with_environment_learns_and_resumes_identically(tmp_path: Path) -> None:
    whole, killed = Game(tmp_path / "whole", *PPO), Game(tmp_path / "killed", *PPO)
    whole.finish()
    steps = stage_rows(whole.run.path)
    assert len(steps) == 20
    rewards = [row["reward/mean"] for row in steps]
    assert mean(rewards[-4:]) > mean(rewards[:4]) + 0.05, rewards
    assert all(row["critic/loss"] > 0 and row["episode/masked"] > 0 for row in steps)
    # The first step trains only the critic.
    assert "policy/grad_norm" not in steps[0] and all(row["policy/grad_norm"] > 0 for row in steps[1:])

    # In the third turn of step 7; the newest checkpoint is of step 6.
    killed.kill_in(7, 2, saved=6)
    known = read_state(killed, waves=True, ahead=0).sampled
    killed.finish()
    assert exact_rows(killed.run.path) == exact_rows(whole.run.path)
    assert known.items() <= read_trained(killed.run).items()
