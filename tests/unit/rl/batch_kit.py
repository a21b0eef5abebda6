from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from slurm_rl.config.algorithm import OverlongConfig
from slurm_rl.data.groups import Group, Trajectory
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.trainers.grpo.batch_queue import BatchQueue


def make_prompt(index: int, source: str = "") -> EncodedPrompt:
    """Return a prompt with its index as the only token."""
    return EncodedPrompt(index=index, token_ids=[index], text=str(index), answer="7", source=source)


def make_prompts(count: int) -> list[EncodedPrompt]:
    return list(map(make_prompt, range(count)))


def make_result(value: float | None, parts: dict[str, float] | None = None) -> RewardResult:
    item = RewardItem(completion="7", answer="7")
    return RewardResult(item=item, value=value, parts=parts or {}, failure=None if value is not None else "hang")


def make_group(
    index: int,
    values: Sequence[float | None],
    lengths: Sequence[int] | None = None,
    *,
    source: str = "",
    version: int = 0,
) -> Group:
    """Return a group of `make_prompt(index)`; completions have 2 tokens by default."""
    sizes = lengths or [2] * len(values)
    completions = [Trajectory([9] * n, [-0.5] * n, "7", False, version) for n in sizes]
    return Group(make_prompt(index, source), completions, [make_result(value) for value in values])


def make_queue(
    source: Any, staleness: int, num_steps: int, *, rounds: int = 1, prompts: int = 1, is_journalled: bool = False
) -> BatchQueue:
    """Return a batch queue over `source`; its `start` takes step and round."""
    config: Any = SimpleNamespace(
        reward=SimpleNamespace(max_failure_rate=1.0),
        rollout=SimpleNamespace(replay=None, dump=False, max_off_policy_steps=staleness, max_tokens=8),
        data=SimpleNamespace(sources={}),
        warmup=SimpleNamespace(num_steps=0),
        trainer=SimpleNamespace(prompts_per_step=prompts, num_steps=num_steps),
        algorithm=SimpleNamespace(dynamic_sampling_rounds=rounds, group_reward=None, overlong=OverlongConfig()),
    )
    nowhere: Any = None
    schedule: Any = SimpleNamespace(draw=lambda step, number=0: (step, number))
    rollouts: Any = SimpleNamespace(
        start=source.start, finish=lambda pending, timer, within_s: source.finish(pending, within_s)
    )
    return BatchQueue(config, nowhere, schedule, rollouts, is_journalled=is_journalled)
