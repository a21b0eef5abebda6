"""State of a run with episodes on disk, and comparison of killed runs with undisturbed ones."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from slurm_rl.models.checkpoint.store import CheckpointStore
from slurm_rl.rollout.turn_log_format import build_histories, parse_lines
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.grpo.rollout_files import replay_groups
from tests.killed_game.game import Game
from tests.whole_run import exact_rows


class EpisodeTurn(NamedTuple):
    """A turn of an episode."""

    step: int
    prompt_index: int
    """Index of its prompt among those of the game in the batch."""
    member: int
    turn: int


Sampled: TypeAlias = tuple[list[int], list[float], list[int]]
"""Token ids, logprobs and weight versions, one per token."""


@dataclass(frozen=True)
class RunState:
    """State of a killed run that a resumed run must not sample or request again."""

    saved: int
    """Step of its newest checkpoint."""
    sampled: dict[EpisodeTurn, Sampled]
    """Sampled turns."""
    answered: set[EpisodeTurn]
    """Turns with a recorded environment result."""
    num_calls: int
    """Number of environment calls so far."""


def read_state(game: Game, *, waves: bool, ahead: int) -> RunState:
    """Read the state of a stopped run; check that no journal contains a turn twice.

    Args:
        waves: include turns sampled with weights that were never saved; they are sampled again and compared.
        ahead: rollout.max_off_policy_steps.
    """
    newest = CheckpointStore(game.run.checkpoints).latest()
    saved = newest.step if newest is not None else 0
    sampled, answered = dict[EpisodeTurn, Sampled](), set[EpisodeTurn]()
    for file in game.run.journal.glob("rollout-*.journal"):
        _, number, seed = file.stem.split("-")
        step = int(number)
        if int(seed, 16) != game.batch_seed(step):
            continue  # a turn of the mixture's calculator, which has other places
        rows = parse_lines(file.read_bytes())[0]
        twice = Counter((row.p, row.m, row.t) for row in rows if row.reply is not None)
        assert waves or max(twice.values(), default=1) == 1, f"{file.name}: sampled twice: {twice.most_common(3)}"
        if step < saved or (not waves and step > saved + ahead):
            continue
        for (place, member), history in build_histories(rows, None if waves else saved).items():
            turns = [EpisodeTurn(step, place, member, turn) for turn in range(len(history.replies))]
            replies = zip(turns, (packed.unpack() for packed in history.replies), strict=True)
            sampled |= {at: (it.token_ids, it.logprobs, it.versions()) for at, it in replies}
            answered |= set(turns[: len(history.outcomes)])
    return RunState(saved, sampled, answered, len(game.calls))


def read_trained(run: RunDir) -> dict[EpisodeTurn, Sampled]:
    """Return every turn of a game that the run trained on, from rollout.dump=true."""
    found: dict[EpisodeTurn, Sampled] = {}
    for file in run.rollouts.glob("step-*.jsonl"):
        step = int(file.stem.removeprefix("step-"))
        groups = [group for group in replay_groups(run.rollouts, step) if group.prompt.source in ("", "games")]
        for place, group in enumerate(groups):
            for member, one in enumerate(group.completions):
                versions, first = one.versions(), 0
                for turn, span in enumerate(one.turns):
                    last = first + span.end - span.start
                    ids = one.token_ids[span.start : span.end]
                    found[EpisodeTurn(step, place, member, turn)] = ids, one.logprobs[first:last], versions[first:last]
                    first = last
    return found


def check_kept(state: RunState, game: Game) -> None:
    """Check that nothing in `state` is lost, changed or requested again."""
    trained = read_trained(game.run)
    lost = {at: (one, trained.get(at)) for at, one in state.sampled.items() if trained.get(at) != one}
    assert not lost, f"{len(lost)} of {len(state.sampled)} turns, such as {next(iter(lost.items()))}"
    again = state.answered & set(find_turns(game, game.calls[state.num_calls :]))
    assert not again, f"{len(again)} requested from environments again: {sorted(again)[:5]}"


def find_turns(game: Game, names: list[str]) -> list[EpisodeTurn]:
    """Return the training turns of these call ids, without evaluation."""
    steps = {str(game.batch_seed(step)): step for step in range(100)}
    parts = [name.split(".") for name in names]
    return [EpisodeTurn(steps[seed], int(at), int(of), int(turn)) for seed, at, of, turn, _ in parts if seed in steps]


def effects(seen: Path) -> list[str]:
    return sorted(path.name for path in (seen / "effects").iterdir())


def token_ids_of(trained: dict[EpisodeTurn, Any]) -> dict[EpisodeTurn, list[int]]:
    return {at: ids for at, (ids, _, _) in trained.items()}


@dataclass(frozen=True)
class Mode:
    """Episode settings of a run and the checks that hold for them, by the table in docs/environments.md."""

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
