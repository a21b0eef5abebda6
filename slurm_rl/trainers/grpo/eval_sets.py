"""Evaluation sets, each with its own environment, reward and sampling, and their metrics.

The seed depends only on the set: all steps, runs and checkpoints sample the same prompts with the same random numbers,
so results differ only by the weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_rl.algorithms.estimates import average_at_k, estimate_pass
from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.config.run import RunConfig
from slurm_rl.data.groups import Group, SamplingSpec
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.rollout.sampling import Rollouts, build_spec
from slurm_rl.trainers.grpo.step_metrics import judge_groups, pass_sizes


@dataclass(frozen=True)
class EvalSet:
    """An evaluation set, ready to sample."""

    name: str
    prompts: Sequence[EncodedPrompt]
    rollouts: Rollouts
    config: RunConfig
    """Config of the run with the set's data and sampling."""
    num_samples: int

    def sample(self, step: int) -> list[Group]:
        """Sample and judge all prompts."""
        return self.rollouts.sample(self.prompts, self.spec(step))

    def measure(self, step: int) -> dict[str, float]:
        """Return the metrics `set/<name>/...` of samples of all prompts."""
        return set_metrics(self.name, self.sample(step))

    def spec(self, step: int) -> SamplingSpec:
        greedy = self.config.rollout.temperature == 0
        spec = build_spec(self.config, f"eval-{self.name}", step, self.num_samples, greedy=greedy)
        return replace(spec, seed=derive_seed("eval set", self.name))


def set_metrics(name: str, groups: Sequence[Group]) -> dict[str, float]:
    """Return the metrics of a set; failed samples are counted but excluded from the means."""
    failed = [[result.failure is not None for result in group.results] for group in groups]
    scores = [
        [None if is_failed else score for score, is_failed in zip(*pair, strict=True)]
        for pair in zip(judge_groups(groups), failed, strict=True)
    ]
    count = len(groups[0].completions)
    found = {f"avg@{count}": average_at_k(scores)}
    found |= {f"pass@{k}": estimate_pass(scores, k) for k in pass_sizes(count)}
    completions = [completion for group in groups for completion in group.completions]
    values = {
        "prompts": float(len(groups)),
        "failed": float(sum(map(sum, failed))),
        "length_mean": sum(completion.num_sampled for completion in completions) / len(completions),
        "truncated": sum(completion.truncated for completion in completions) / len(completions),
    }
    for key, estimate in found.items():
        if estimate is not None:
            values |= {key: estimate.value, f"{key}_error": estimate.error}
    return {f"set/{name}/{key}": value for key, value in values.items()}
