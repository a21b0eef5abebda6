"""A game of several turns over two nodes of a real Slurm, whose job meets with something in the middle of a turn.

The real trainer: Ray, vLLM and torch on CPU. Minutes, so marked slow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.killed_game.game import PATIENCE_S, Game
from tests.killed_game.modes import MODES
from tests.killed_game.program_game import ProgramGame
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.light.runs import LightRun
from tests.slurm.submitting import cli

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(2400)]

SIZES = ("trainer.num_steps=6", "eval.interval=6", "checkpoint.interval=1")
Befall = Callable[[LightRun, int], None]


def kill_controller(run: LightRun, attempt: int) -> None:
    run.kill(run.hosts(attempt)[0], "submitit.core._submit", newest_alone=True)


def kill_agent(run: LightRun, attempt: int) -> None:
    run.kill(run.hosts(attempt)[1], "slurm_rl.node.agent")


def requeue(run: LightRun, attempt: int) -> None:
    assert run.cluster.run(["scontrol", "requeue", run.job]).returncode == 0


def ask_to_stop(run: LightRun, attempt: int) -> None:
    """As Slurm does before the time limit; whoever is asked ends the turn first."""
    run.send_stop()
    (run.run_dir.path.with_name("run-seen") / "hold").unlink()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Game:
    """On this machine, and nobody disturbs it."""
    game = Game(tmp_path_factory.mktemp("whole"), *SIZES)
    game.finish()
    return game


@pytest.mark.parametrize(
    ("name", "befalls"),
    [("lockstep", (kill_agent, ask_to_stop, kill_controller)), ("async", (requeue, kill_controller))],
    ids=["lockstep", "async"],
)
def test_whatever_befalls_its_job_in_a_turn_a_game_goes_on(
    name: str, befalls: tuple[Befall, ...], cluster: Cluster, shared_dir: Path, whole: Game
) -> None:
    """In turn 0 of the second step, 1 of the fourth, 2 of the sixth, with checkpoints between."""
    mode, lefts = MODES[name], []
    game = Game(shared_dir / "game", *SIZES, "+cluster=slurm_cpu", "job.max_failures=2", *mode.words)
    game.hold(1, 0)
    done = cli(cluster, game.run.path.parent, *game.words)
    assert done.returncode == 0, done.stderr
    run = LightRun.open(cluster, game.run.path)
    for turn, befall in enumerate(befalls):
        step, attempt = 2 * turn + 1, turn + 1
        wait_until(lambda at=step: game.is_held(at), f"turn {turn} of step {step}", timeout_s=PATIENCE_S)
        befall(run, attempt)
        # Until nobody of it is left its worlds are held, or it would go on for a while.
        run.wait_for_events("attempt/ended", attempt, timeout_s=PATIENCE_S)
        lefts.append(mode.left(game))
        assert any((at.step, at.turn) == (step, turn) for at in lefts[-1].sampled)
        if befall is befalls[-1]:
            game.release()
        else:
            game.hold(step + 2, turn + 1)
    assert run.wait_for_end(timeout_s=PATIENCE_S)["state"] == "finished"
    assert len(run.outcomes) == len(befalls) + 1
    mode.check(game, lefts, whole)


def test_programs_that_play_go_on_after_a_requeue(
    cluster: Cluster, shared_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In turn 1 of the third step: what they had been told is told again."""
    free = MODES["async"]
    whole = ProgramGame(tmp_path_factory.mktemp("whole-programs"))
    whole.finish()
    game = ProgramGame(shared_dir / "programs", "+cluster=slurm_cpu", "job.max_failures=2")
    game.hold(2, 1)
    done = cli(cluster, game.run.path.parent, *game.words)
    assert done.returncode == 0, done.stderr
    run = LightRun.open(cluster, game.run.path)
    wait_until(lambda: game.is_held(2), "turn 1 of step 2", timeout_s=PATIENCE_S)
    requeue(run, 1)
    run.wait_for_events("attempt/ended", 1, timeout_s=PATIENCE_S)
    left = free.left(game)
    assert any((at.step, at.turn) == (2, 1) for at in left.sampled)
    game.release()
    assert run.wait_for_end(timeout_s=PATIENCE_S)["state"] == "finished"
    free.check(game, [left], whole)
