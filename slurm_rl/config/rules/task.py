"""Rules of a task, its lengths and the critic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from slurm_rl.config.tasks import EXTERNAL_TASKS, OUR_TASKS

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig


def task_problems(config: RunConfig) -> Iterator[str]:
    """What a task does not read, or cannot hold."""
    tiny, name = config.model.tiny or config.model.tiny_vl, "tiny" if config.model.tiny else "tiny_vl"
    longest = config.data.max_prompt_tokens + config.rollout.max_tokens
    if tiny is None or config.external is not None:
        pass  # not known here, or an external program's own affair
    elif config.task == "grpo" and longest > tiny.context_length:
        yield (
            f"data.max_prompt_tokens + rollout.max_tokens must be <= model.{name}.context_length; got "
            f"{config.data.max_prompt_tokens} + {config.rollout.max_tokens} > {tiny.context_length}. "
            "Next: shorten either, or raise the context"
        )
    elif config.task != "grpo" and config.supervised.max_tokens > tiny.context_length:
        yield (
            f"supervised.max_tokens must be <= model.{name}.context_length; got "
            f"{config.supervised.max_tokens} > {tiny.context_length}. Next: lower it, or raise the context"
        )
    if config.supervised.patience is not None and not (config.eval.every and config.data.num_eval):
        yield (
            "supervised.patience counts evaluations, so it needs eval.every and data.num_eval above 0; got "
            f"{config.eval.every} and {config.data.num_eval}. Next: set both, or supervised.patience=null"
        )
    if config.task == "rm" and config.data.image_key is not None:
        yield (
            f"data.image_key is not for task=rm, whose models read text alone; got {config.data.image_key!r}. "
            "Next: data.image_key=null"
        )
    if (config.external is None) != (config.task in OUR_TASKS):
        has, words = ("none", "external=verl") if config.external is None else ("one", "task=command")
        yield (
            f"the tasks {', '.join(EXTERNAL_TASKS)}, and they alone, have a section external; got "
            f"task={config.task} with {has}. Next: {words}, or an experiment that says both"
        )


def critic_problems(config: RunConfig) -> Iterator[str]:
    """Keys of a critic where none is trained."""
    if config.algorithm.needs_values and config.critic.warmup_steps >= config.trainer.num_steps:
        yield (
            "critic.warmup_steps must be < trainer.num_steps, or the policy never learns; got "
            f"{config.critic.warmup_steps} and {config.trainer.num_steps}. Next: lower critic.warmup_steps"
        )
    wanted = {
        "critic.apart": config.critic.apart,
        "critic.num_workers": config.critic.num_workers,
        "reward.model.device=critic": config.reward.model.beside_critic,
    }
    for name, value in wanted.items():
        if value and not (config.task == "grpo" and config.algorithm.needs_values):
            yield (
                f"{name} needs a critic, which algorithm.advantage=gae trains; got "
                f"{config.algorithm.advantage!r} with task={config.task}. Next: +algorithm=ppo, or leave it out"
            )
    if config.reward.model.beside_critic and (
        config.reward.url or config.reward.service.enabled or config.reward.function
    ):
        yield (
            "reward.model.device=critic scores in the run itself, without reward.url, reward.function and "
            "reward.service.enabled. Next: leave these out, or reward.model.device=cpu"
        )
