"""Rollouts: prompts in, scored groups out. Of one turn, here; of several, episodes.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from slurm_rl.data.groups import Group, SamplingSpec
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.node.stop import Timer
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.rollout.sampling import PendingGroups, Sampler, gather_arrivals, score_arrivals, score_groups


class Rollouts(Protocol):
    """What the loop and the evaluation ask for."""

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> Any:
        """Ask the engines for the first replies; returns at once."""

    def finish(self, pending: Any, timer: Timer, within_s: float | None = None) -> list[Group]:
        """The scored groups, in the order of the prompts.

        Args:
            timer: gets the phases rollout and reward, and environment where there are any.
            within_s: that long it may take, whatever signals come; None: `trainer.step_timeout_s`, and a stop ends it.
        """

    def sample(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> list[Group]:
        """The same at once, for the evaluation."""


class SingleTurn:
    """A completion is an episode, which a scorer judges.

    Args:
        gathered: score all at once: a reward model's last digits depend on what it reads together, which time must not
            decide.
    """

    def __init__(self, sampler: Sampler, scorer: Scorer, *, gathered: bool) -> None:
        self.sampler, self.scorer, self.gathered = sampler, scorer, gathered

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> PendingGroups:
        return self.sampler.start(prompts, spec)

    def finish(self, pending: PendingGroups, timer: Timer, within_s: float | None = None) -> list[Group]:
        arrivals = self.sampler.arrivals(pending, within_s)
        return score_arrivals(gather_arrivals(arrivals) if self.gathered else arrivals, self.scorer, timer)

    def sample(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> list[Group]:
        return score_groups(self.sampler.sample(prompts, spec), self.scorer)
