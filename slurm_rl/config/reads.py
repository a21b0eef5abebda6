"""What a task must be given, and which keys it reads. Pure.

What it does not read is refused, so that nothing is set without effect. All of it is asked of new runs alone: one that
began goes on as it was.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from slurm_rl.config.run import RunConfig
from slurm_rl.config.section import Section
from slurm_rl.config.sources import each_set, each_source
from slurm_rl.config.tasks import EXTERNAL_TASKS, OUR_TASKS, TORCHRUN_TASKS
from slurm_rl.errors import ConfigError

EVERY_TASK = ("name", "run_dir", "task", "cluster", "container", "job", "preflight", "ray")
"""Keys of the run itself, and of machines, which stay the same whatever is run on them."""
READERS: Final[dict[str, tuple[str, ...]]] = {
    "seed": OUR_TASKS,
    "model": OUR_TASKS,
    # Filled in for every task, by the accelerator.
    "model.dtype": (*OUR_TASKS, *EXTERNAL_TASKS),
    "data": OUR_TASKS,
    # Where the files of verl's presets begin.
    "data.root": (*OUR_TASKS, *EXTERNAL_TASKS),
    "data.sources": ("grpo",),
    "data.curriculum": ("grpo",),
    "data.info_keys": ("grpo",),
    "data.system": ("grpo",),
    "data.messages_key": ("sft",),
    "data.chosen_key": ("rm", "dpo"),
    "data.rejected_key": ("rm", "dpo"),
    "data.margin_key": ("rm",),
    "algorithm": ("grpo",),
    "policy": OUR_TASKS,
    "policy.share_prompts": ("grpo",),
    "reference": ("grpo",),
    "rollout": ("grpo",),
    "reward": ("grpo",),
    "env": ("grpo",),
    "optim": OUR_TASKS,
    "critic": ("grpo",),
    "supervised": TORCHRUN_TASKS,
    "sft": ("sft",),
    "rm": ("rm",),
    "dpo": ("dpo",),
    "warmup": ("grpo",),
    "trainer": ("grpo",),
    "trainer.step_timeout_s": OUR_TASKS,
    "eval": OUR_TASKS,
    "eval.greedy": ("grpo",),
    "eval.sets": ("grpo",),
    "eval.only": ("grpo",),
    "eval.num_samples": ("grpo",),
    "checkpoint": OUR_TASKS,
    # Where logs and export go at the end; where MaxText's run of `export xpk` keeps its own.
    "checkpoint.url": (*OUR_TASKS, *EXTERNAL_TASKS),
    "logging": OUR_TASKS,
    "logging.samples_per_step": ("grpo",),
    "external": EXTERNAL_TASKS,
}
"""Section, or one key of it, to the tasks that read it; the longer name counts."""
_INSTEAD = {
    "rollout.max_tokens": "supervised.max_tokens",
    "data.max_prompt_tokens": "supervised.max_tokens",
    "trainer.prompts_per_step": "supervised.batch_size",
    "trainer.num_steps": "supervised.max_steps or supervised.num_epochs",
    "trainer.num_epochs": "supervised.num_epochs",
}
"""What the supervised tasks have in place of a key of GRPO's."""


def check_reads(config: RunConfig) -> None:
    """Refuse what is set away from its default and not read by the task.

    Raises:
        ConfigError: naming each such key, who reads it, and what the task has instead.
    """
    unread = {key: value for key, value in find_changed(config) if config.task not in find_readers(key, config.task)}
    if not unread:
        return
    first = next(iter(unread))
    readers = ", ".join(find_readers(first, config.task))
    instead = _INSTEAD.get(first) if config.task in TORCHRUN_TASKS else None
    raise ConfigError(
        f"task={config.task} does not read {', '.join(unread)}",
        seen=", ".join(f"{key}={value}" for key, value in unread.items()),
        action=f"leave it out; {first} is read with task={readers}" + (f", here it is {instead}" if instead else ""),
    )


def find_readers(key: str, task: str) -> tuple[str, ...]:
    """The tasks that read a key, by the longest name that is in the table.

    >>> find_readers("eval.greedy", "sft"), find_readers("cluster.env", "sft")
    (('grpo',), ('sft',))
    """
    name = key
    while name:
        if name in READERS:
            return READERS[name]
        name = name.rpartition(".")[0]
    return (task,)


@functools.cache
def _defaults(section: type[Section]) -> dict[str, object]:
    """Of each field; once a class, since pydantic copies what may be changed, which nothing here does."""
    return {name: field.get_default(call_default_factory=True) for name, field in section.model_fields.items()}


def find_changed(section: Section, default: Section | None = None, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted keys whose values are not the defaults, with these values; what may be null is one key.

    Args:
        section: what the user said.
        default: what it would be; None: as its class says.
        prefix: of its keys.
    """
    fields = type(section).model_fields
    for name, usual in _defaults(type(section)).items():
        value = getattr(section, name)
        usual = usual if default is None else getattr(default, name)
        if isinstance(value, Section) and (isinstance(usual, Section) or fields[name].is_required()):
            yield from find_changed(value, usual if isinstance(usual, Section) else None, f"{prefix}{name}.")
        elif value != usual:
            yield prefix + name, "set" if isinstance(value, Section) else value


def check_required(config: RunConfig) -> None:
    """Ask for everything that is missing at once.

    Raises:
        ConfigError: naming each missing value, with words that would give it.
    """
    if config.external is not None:  # its program has a model and data of its own
        return
    model = config.model
    named: dict[str, tuple[object, str]] = {
        "model.path": (model.path or model.tiny or model.tiny_vl, "model.path=Qwen/Qwen3-4B"),
    }
    if config.eval.only:
        named["eval.sets"] = (config.eval.sets, "+eval.sets.mine.data=my.jsonl")
        judged = each_set(config).values()
    else:
        named["data.train"] = (config.data.train or config.data.sources, "+data=gsm8k")
        judged = each_source(config).values()
    if config.task == "grpo":
        named["a reward (reward.verifiers, function, model.path or url)"] = (
            # An environment may give rewards itself.
            all(one.reward.names_a_scorer or one.env.is_on for one in judged),
            "+reward=math",
        )
    missing = {name: words for name, (value, words) in named.items() if not value}
    if missing:
        raise ConfigError(
            f"a run with task={config.task} must be given {_join(missing)}",
            seen="none" if len(missing) == 1 else "none of them",
            action=f"{' '.join(missing.values())}, or an experiment that says all of it: "
            + ("+exp=demo" if config.task == "grpo" else f"+exp={config.task}_tiny"),
        )


def _join(names: dict[str, str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def check_sampling(config: RunConfig) -> None:
    """Raise ConfigError for a sampler that is another distribution than the policy while nothing corrects for it.

    The ratio of policy to sampler then begins below 1 or above for each token that the sampler favours, so clipping
    and gradient are of the cut and not of what the policy learns.
    """
    if config.external is not None or config.algorithm.correction.kind is not None:
        return
    for name, one in each_source(config).items():
        rollout = one.rollout
        if not rollout.bends_distribution:
            continue
        raise ConfigError(
            "algorithm.correction.kind must not be null with rollout.top_p, top_k, min_p or repetition_penalty, which "
            "make the sampler another distribution than the policy",
            seen=f"null with top_p={rollout.top_p}, top_k={rollout.top_k}, min_p={rollout.min_p} and "
            f"repetition_penalty={rollout.repetition_penalty}" + (f" of data.sources.{name}" if name else ""),
            action="set algorithm.correction.kind=auto, or leave these out",
        )
