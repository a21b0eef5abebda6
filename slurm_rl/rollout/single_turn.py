"""The interface of rollouts (prompts in, scored groups out), and rollouts of a single turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from slurm_rl.rollout.sampling import PendingGroups, Sampler, gather_arrivals, score_arrivals, score_groups

if TYPE_CHECKING:
    from slurm_rl.data.groups import Group, SamplingSpec
    from slurm_rl.data.tokenize import EncodedPrompt
    from slurm_rl.node.stop import Timer
    from slurm_rl.rewards.scorer import Scorer


class Rollouts(Protocol):
    """Samples and scores; used by the training loop and the evaluation."""

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> Any:
        """Send the first requests and return at once."""

    def finish(self, pending: Any, timer: Timer, within_s: float | None = None) -> list[Group]:
        """Return the scored groups in the order of the prompts.

        Args:
            timer: records the phases rollout, reward and environment.
            within_s: time limit that ignores stop signals; None: `trainer.step_timeout_s`, and a stop signal ends it.
        """

    def sample(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> list[Group]:
        """Start and finish in one call, for the evaluation."""


class SingleTurn:
    """Rollouts of one completion per episode, scored directly.

    Args:
        gathered: score all completions in one call: the last digits of a reward model depend on the batch, which must
            not depend on timing.
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
