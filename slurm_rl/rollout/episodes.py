"""Episodes of several turns, in waves: all that are under way reply, then all their environments step, and so on.

    wave 0   the row's prompt         -> reply -> step       as a single turn, by the same seeds
    wave t   ... reply, observation   -> reply -> step       a seed of (run, purpose, step, place, member, t)

Nothing follows from time: an episode's tokens are those of its seed, and an interrupted step is sampled again to the
same digits; what environments said before, and rewards, come from the journal and are not asked for again. What an
environment says is appended as tokens that nobody trains on; what was sampled is never rendered again.
`rollout.max_tokens` bounds both together, so an episode fits wherever a completion does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_rl.data.groups import Group, SamplingSpec
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.envs.environments import Environments
from slurm_rl.node.stop import Timer
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.rollout.ended import gather_groups, score_episodes
from slurm_rl.rollout.episode import (
    Episode,
    Limits,
    begin_episodes,
    note_answer,
    note_reply,
)
from slurm_rl.rollout.journal import BatchJournal, Journal
from slurm_rl.rollout.packed_reply import PackedReply
from slurm_rl.rollout.sampling import PendingGroups, Sampler


@dataclass(frozen=True)
class PendingEpisodes:
    """First replies on their way."""

    spec: SamplingSpec
    first: PendingGroups
    journal: BatchJournal | None


class Episodes:
    """`Rollouts` of several turns.

    Args:
        scorer: judges the last reply of an episode whose environment gave no reward; None where it must.
        journal: None: nothing is noted.
    """

    def __init__(
        self,
        sampler: Sampler,
        pool: Environments,
        renderer: TurnRenderer,
        limits: Limits,
        scorer: Scorer | None,
        journal: Journal | None = None,
    ) -> None:
        self.sampler, self.pool, self.renderer, self.limits, self.scorer = sampler, pool, renderer, limits, scorer
        self.journal = journal

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> PendingEpisodes:
        spec = replace(spec, max_tokens=self.limits.turn_tokens)
        journal = self.journal.open(spec, prompts, self.pool.facts) if self.journal is not None else None
        if journal is not None and self.pool.facts.resume == "restart":
            journal.histories.clear()  # of a world that begins anew nothing is known
        return PendingEpisodes(spec, self.sampler.start(prompts, spec), journal)

    def finish(self, pending: PendingEpisodes, timer: Timer, within_s: float | None = None) -> list[Group]:
        spec, journal = pending.spec, pending.journal
        with timer.phase("rollout"):
            groups = self.sampler.finish(pending.first, within_s)
        episodes = begin_episodes(groups, spec.seed, journal)
        # Where a stop interrupted this, and it is done again for a checkpoint, worlds have had turns already.
        self.pool.forget([episode.name for episode in episodes])
        under_way = episodes
        while under_way:
            with timer.phase("environment"):
                self._step(under_way, journal)
            under_way = [episode for episode in under_way if not episode.ended]
            if under_way:
                with timer.phase("rollout"):
                    self._reply(under_way, spec, within_s)
        self.pool.forget([episode.name for episode in episodes])
        with timer.phase("reward"):
            results = score_episodes(episodes, self.scorer, journal)
        return gather_groups([group.prompt for group in groups], episodes, results)

    def sample(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> list[Group]:
        return self.finish(self.start(prompts, spec), Timer())

    def _step(self, episodes: Sequence[Episode], journal: BatchJournal | None) -> None:
        fresh = [episode for episode in episodes if episode.recall() is None]
        if journal is not None:
            journal.write(note_reply(episode) for episode in episodes if episode.history is None)
        asked = {answer.episode: answer for answer in self.pool.ask([episode.next_call() for episode in fresh])}
        if journal is not None:
            journal.write(note_answer(episode, asked[episode.name]) for episode in fresh)
        for episode in episodes:
            answer = asked.get(episode.name) or episode.recall()
            assert answer is not None
            episode.add_answer(answer, self.renderer, self.limits)

    def _reply(self, episodes: Sequence[Episode], spec: SamplingSpec, within_s: float | None) -> None:
        prompts, seeds = [one.next_prompt() for one in episodes], [one.next_seed for one in episodes]
        pending = self.sampler.start(prompts, replace(spec, num_completions=1), seeds)
        for episode, group in zip(episodes, self.sampler.finish(pending, within_s), strict=True):
            episode.add_reply(PackedReply.of(group.completions[0]))
