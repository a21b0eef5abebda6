"""Tasks that read a key, and the keys that a config changes."""

import functools
from collections.abc import Iterator
from typing import Final

from slurm_rl.config.section import Section
from slurm_rl.config.tasks import EXTERNAL_TASKS, OUR_TASKS, TORCHRUN_TASKS

READERS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("seed", "model", "data", "policy", "optim", "eval", "checkpoint", "logging"), OUR_TASKS),
    **dict.fromkeys(("algorithm", "reference", "rollout", "reward", "env", "critic", "warmup", "trainer"), ("grpo",)),
    # Filled in for every task; the root of verl's files; where MaxText's export keeps its own checkpoints.
    **dict.fromkeys(("model.dtype", "data.root", "checkpoint.upload_url"), (*OUR_TASKS, *EXTERNAL_TASKS)),
    **dict.fromkeys(("data.sources", "data.curriculum", "data.info_keys", "data.system"), ("grpo",)),
    **dict.fromkeys(
        ("eval.greedy", "eval.sets", "eval.only", "eval.num_samples", "eval.on_checkpoint", "eval.job"), ("grpo",)
    ),
    **dict.fromkeys(("logging.on_end", "logging.on_end_timeout_s"), (*OUR_TASKS, *EXTERNAL_TASKS)),
    **dict.fromkeys(("policy.prefix_sharing", "logging.samples_per_step"), ("grpo",)),
    **dict.fromkeys(("data.chosen_key", "data.rejected_key"), ("rm", "dpo")),
    "data.messages_key": ("sft",),
    "data.margin_key": ("rm",),
    "trainer.step_timeout_s": OUR_TASKS,
    "supervised": TORCHRUN_TASKS,
    **{task: (task,) for task in TORCHRUN_TASKS},
    "external": EXTERNAL_TASKS,
}
"""Section or key -> the tasks that read it; the longest matching name applies."""


def find_readers(key: str, task: str) -> tuple[str, ...]:
    """Return the tasks that read a key; `task` itself for keys of every task.

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
    """Return the default of each field; cached, since pydantic copies mutable ones."""
    return {name: field.get_default(call_default_factory=True) for name, field in section.model_fields.items()}


def find_changed(section: Section, default: Section | None = None, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield dotted keys that differ from their defaults, with their values; an optional section is one key.

    Args:
        section: the config or a part of it.
        default: values to compare with; None: the defaults of the class.
        prefix: beginning of the keys.
    """
    fields = type(section).model_fields
    for name, usual in _defaults(type(section)).items():
        value = getattr(section, name)
        usual = usual if default is None else getattr(default, name)
        if isinstance(value, Section) and (isinstance(usual, Section) or fields[name].is_required()):
            yield from find_changed(value, usual if isinstance(usual, Section) else None, f"{prefix}{name}.")
        elif value != usual:
            yield prefix + name, "set" if isinstance(value, Section) else value
