"""Multi-turn episodes in lockstep: all active episodes reply, then all their environments step, and so on.

    turn 0   the row's prompt         -> reply -> step       with the seeds of a single turn
    turn t   ... reply, observation   -> reply -> step       with a seed of (run, purpose, step, index, member, t)

Nothing depends on timing: an interrupted step is sampled again to the same digits, while logged steps of environments
and rewards are reused. Observations are appended as tokens that are not trained on, and sampled tokens are never
rendered again. `rollout.max_tokens` limits replies and observations together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_rl.data.groups import Group, SamplingSpec
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.envs.environments import Environments
from slurm_rl.node.stop import Timer
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.rollout.episode import Episode, Limits, log_answer, log_reply
from slurm_rl.rollout.response import Response
from slurm_rl.rollout.sampling import Chunk, Rollouts, Sampler
from slurm_rl.rollout.scoring import gather_groups, score_episodes
from slurm_rl.rollout.turn_log import BatchLog, TurnLog


@dataclass(frozen=True)
class PendingEpisodes:
    """First replies in flight."""

    spec: SamplingSpec
    first: Sequence[Chunk]
    log: BatchLog | None


class LockstepEpisodes(Rollouts):
    """`Rollouts` of several turns in lockstep.

    Args:
        scorer: scores the last reply if the environment gave no reward; None if it must give one.
        log: None disables the turn log.
    """

    def __init__(
        self,
        sampler: Sampler,
        pool: Environments,
        renderer: TurnRenderer,
        limits: Limits,
        scorer: Scorer | None,
        log: TurnLog | None = None,
    ) -> None:
        self.sampler, self.pool, self.renderer, self.limits, self.scorer = sampler, pool, renderer, limits, scorer
        self.log = log

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> PendingEpisodes:
        spec = replace(spec, max_tokens=self.limits.turn_tokens)
        log = self.log.open(spec, prompts, self.pool.facts) if self.log is not None else None
        if log is not None and self.pool.facts.resume == "restart":
            log.histories.clear()  # the environment starts again from scratch
        return PendingEpisodes(spec, self.sampler.start(prompts, spec), log)

    def finish(self, pending: PendingEpisodes, timer: Timer, within_s: float | None = None) -> list[Group]:
        spec, log = pending.spec, pending.log
        with timer.phase("rollout"):
            groups = self.sampler.finish(pending.first, within_s)
        episodes = _begin_episodes(groups, spec.seed, log)
        # If a stop signal interrupted this call, the environments have taken turns already.
        self.pool.forget([episode.name for episode in episodes])
        active = episodes
        while active:
            with timer.phase("environment"):
                self._step(active, log)
            active = [episode for episode in active if not episode.ended]
            if active:
                with timer.phase("rollout"):
                    self._reply(active, spec, within_s)
        self.pool.forget([episode.name for episode in episodes])
        with timer.phase("reward"):
            results = score_episodes(episodes, self.scorer, log)
        return gather_groups([group.prompt for group in groups], episodes, results)

    def _step(self, episodes: Sequence[Episode], log: BatchLog | None) -> None:
        fresh = [episode for episode in episodes if episode.recall() is None]
        if log is not None:
            log.write(log_reply(episode) for episode in episodes if episode.history is None)
        answers = {answer.episode: answer for answer in self.pool.ask([episode.next_call() for episode in fresh])}
        if log is not None:
            log.write(log_answer(episode, answers[episode.name]) for episode in fresh)
        for episode in episodes:
            answer = answers.get(episode.name) or episode.recall()
            assert answer is not None
            episode.add_answer(answer, self.renderer, self.limits)

    def _reply(self, episodes: Sequence[Episode], spec: SamplingSpec, within_s: float | None) -> None:
        prompts, seeds = [one.next_prompt() for one in episodes], [one.next_seed for one in episodes]
        pending = self.sampler.start(prompts, replace(spec, num_completions=1), seeds)
        for episode, group in zip(episodes, self.sampler.finish(pending, within_s), strict=True):
            episode.add_reply(Response.pack(group.completions[0]))


def _begin_episodes(groups: Sequence[Group], seed: int, log: BatchLog | None) -> list[Episode]:
    """Return one episode per first reply, in order of groups, then members."""
    episodes = []
    for index, group in enumerate(groups):
        for member, completion in enumerate(group.completions):
            history = log.histories.get((index, member)) if log is not None else None
            episodes.append(Episode(index, member, group.prompt, seed, history=history))
            episodes[-1].add_reply(Response.pack(completion))
    return episodes
