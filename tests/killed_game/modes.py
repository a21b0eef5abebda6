"""Compare killed runs with undisturbed ones, one mode per row of the table in docs/environments.md."""

from dataclasses import dataclass

from slurm_rl.trainers.grpo.rollout_files import replay_groups
from tests.killed_game.game import Game
from tests.killed_game.run_state import RunState, check_kept, effects, read_state, read_trained, token_ids_of
from tests.whole_run import exact_rows


@dataclass(frozen=True)
class Mode:
    """Episode settings of a run and the checks that hold for them."""

    words: tuple[str, ...]
    waves: bool
    ahead: int = 0

    @property
    def reference(self) -> tuple[str, ...]:
        """Overrides of the run to compare with: free order has the tokens of waves."""
        return self.words if self.waves else ()

    def read_state(self, game: Game) -> RunState:
        """Read the state that a killed run left."""
        return read_state(game, waves=self.waves, ahead=self.ahead)

    def check(self, game: Game, states: list[RunState], whole: Game) -> None:
        """Check a finished run that was killed in the given `states` against an undisturbed run."""
        for state in states:
            check_kept(state, game)
        if self.waves:
            assert exact_rows(game.run.path) == exact_rows(whole.run.path)
            steps = range(len(list(whole.run.rollouts.iterdir())))
            # Rows of all sources in order, tokens, logprobs and rewards.
            assert all(replay_groups(game.run.rollouts, at) == replay_groups(whole.run.rollouts, at) for at in steps)
        if self.waves or not self.ahead:
            assert token_ids_of(read_trained(game.run)) == token_ids_of(read_trained(whole.run))
            assert effects(game.seen) == effects(whole.seen), "each call has its one effect"


MODES = {
    "lockstep": Mode((), waves=True),
    "async": Mode(("env.schedule=async",), waves=False),
    "lockstep-ahead": Mode(("rollout.max_off_policy_steps=1",), waves=True, ahead=1),
    "async-ahead": Mode(
        ("env.schedule=async", "rollout.max_off_policy_steps=2", "rollout.inflight_weight_updates=true"),
        waves=False,
        ahead=2,
    ),
}
