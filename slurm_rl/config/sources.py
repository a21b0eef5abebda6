"""Sources of a mixture and sets of an evaluation: what each says, and the config of a run that had it alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.config.rows import ColumnsConfig, RowsConfig
from slurm_rl.config.section import NonNegativeFloat, PositiveFloat, PositiveInt
from slurm_rl.config.ways import WaysConfig

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig

LEAST_SHARE: Final = 0.001
"""Of the prompts: one in a block, see data/mixing.py."""


class SourceConfig(RowsConfig, WaysConfig):
    """Part of the prompts that a run is trained on."""

    weight: PositiveFloat = 1.0
    """Its share of the prompts is this over the sum of all weights."""
    temperature: PositiveFloat | None = None
    """As rollout.temperature, also in the policy's logprobs of its rows; null: that."""


class EvalSetConfig(ColumnsConfig, WaysConfig):
    """Rows to evaluate on that are no part of the training data."""

    data: str = ""
    """Which, as data.train names them; they are not taken out of the training data."""
    split: str = "test"
    """For a folder or a hub name: which of it."""
    num_rows: PositiveInt | None = None
    """So many of them, with different prompts, which follow from their prompts alone; null: all."""
    num_samples: PositiveInt = 1
    """Completions of each prompt: the k of avg@k, and of pass@k the largest."""
    temperature: NonNegativeFloat | None = None
    """Of the sampling; 0: greedy. Null: rollout.temperature."""

    def problems(self) -> Iterator[str]:
        if self.temperature == 0 and self.num_samples > 1:
            yield (
                f"num_samples must be 1 with temperature=0, which says the same each time; got {self.num_samples}. "
                "Next: num_samples=1, or a temperature above 0"
            )


def fill_sets(tree: dict[str, Any]) -> dict[str, Any]:
    """Of a tree of the whole config: what a set does not say of its columns is as the data say it."""
    data, evaluation = tree.get("data"), tree.get("eval")
    if not isinstance(evaluation, dict) or not isinstance(evaluation.get("sets"), Mapping):
        return tree
    given = data if isinstance(data, dict) else {}
    common = {key: given[key] for key in ColumnsConfig.model_fields if key in given}
    sets = {name: {**common, **one} if isinstance(one, Mapping) else one for name, one in evaluation["sets"].items()}
    return {**tree, "eval": {**evaluation, "sets": sets}}


def _alone(config: RunConfig, rows: Mapping[str, Any], ways: WaysConfig) -> RunConfig:
    return config.model_copy(
        update={
            "data": config.data.model_copy(update={**rows, "sources": {}}),
            "env": config.env if ways.env is None else ways.env,
            "reward": config.reward if ways.reward is None else ways.reward,
            "rollout": config.rollout.model_copy(update=ways.sampling()),
        }
    )


def set_key(name: str) -> str:
    """Of a set of the evaluation, beside the names of sources."""
    return f"eval.sets.{name}"


def each_set(config: RunConfig) -> dict[str, RunConfig]:
    """The config of each evaluation set by its name: as of a run whose data and sampling were those."""
    found = {}
    for name, one in config.eval.sets.items():
        rows = {key: getattr(one, key) for key in ColumnsConfig.model_fields}
        rows |= {"train": one.data, "train_split": one.split, "eval": None, "num_eval": 0}
        found[name] = _alone(config, rows, one)
    return found


def each_source(config: RunConfig) -> dict[str, RunConfig]:
    """The config of each source by its name; of a run without sources, itself as "".

    >>> from slurm_rl.config.load import load_config
    >>> words = ["+exp=demo", "data.train=''", "+data.sources.sums.train=addition", "+data.sources.more.train=b.jsonl"]
    >>> {name: one.data.train for name, one in each_source(load_config(words)).items()}
    {'more': 'b.jsonl', 'sums': 'addition'}
    """
    sources = config.data.sources
    # Sorted: a table that is written in another order is the same mixture.
    found = {}
    for name in sorted(sources):
        one = sources[name]
        rows = {key: getattr(one, key) for key in RowsConfig.model_fields}
        found[name] = _alone(config, rows, one)
    return found or {"": config}


def own_temperatures(config: RunConfig) -> dict[str, float]:
    """The temperature of each source, where not all have that of the run; empty where they do."""
    found = {name: one.rollout.temperature for name, one in each_source(config).items()}
    return found if set(found.values()) != {config.rollout.temperature} else {}


def episode_order(config: RunConfig) -> str | None:
    """How episodes go that the run's own loop plays, of env.name and env.tools; None where there are none."""
    return min(_orders(config), default=None)  # all the same, or refused


def has_programs(config: RunConfig) -> bool:
    """Whether a program plays the episodes of any source."""
    return any(one.env.program is not None for one in each_source(config).values())


def waits_with_weights(config: RunConfig) -> bool:
    """Whether new weights wait for the batches in flight, since they would come between the turns of an episode."""
    return episode_order(config) == "waves" or has_programs(config)


def goes_on_from_journal(config: RunConfig) -> bool:
    """Whether the episodes in flight go on from their journal, so that no checkpoint waits for them."""
    order, ahead = episode_order(config), config.rollout.max_staleness > 0
    return order == "free" or (order is None and has_programs(config) and not ahead)


def _orders(config: RunConfig) -> set[str]:
    parts = (*each_source(config).values(), *each_set(config).values())
    return {one.env.order for one in parts if one.env.is_on and one.env.program is None}


def source_problems(config: RunConfig) -> Iterator[str]:
    """What is wrong with how each source, and each set of the evaluation, is sampled and judged."""
    if len(_orders(config)) > 1:
        yield "env.order must be the same for all environments of a run; got free and waves. Next: choose one"
    parts = {f"data.sources.{name}" if name else "": one for name, one in each_source(config).items()}
    parts |= {f"eval.sets.{name}": one for name, one in each_set(config).items()}
    for key, one in parts.items():
        prefix = f"{key}: " if key else ""
        if key and not one.data.train:
            name, what = ("data", "evaluate") if key.startswith("eval") else ("train", "train")
            yield f"{key}.{name} must say what to {what} on; got nothing. Next: name a file, or take it out"
        if one.rollout.max_tokens > config.rollout.max_tokens:
            yield (
                f"{prefix}max_tokens must be at most rollout.max_tokens, for which engines have room; got "
                f"{one.rollout.max_tokens} > {config.rollout.max_tokens}. Next: raise rollout.max_tokens"
            )
        if key and one.reward.service.enabled and one.reward is not config.reward:
            yield (
                f"{prefix}reward.service.enabled is for the reward of the whole run, and a part of it cannot have a "
                "service of its own. Next: reward.url of one that you start, or leave it out"
            )
        if key and one.reward.model.beside_critic:
            yield f"{prefix}reward.model.device=critic scores one source alone. Next: reward.model.device=cpu"
        yield from (f"{prefix}{problem}" for problem in environment_problems(one))


def environment_problems(config: RunConfig) -> Iterator[str]:
    """What does not go together with an environment, or without one."""
    env, rollout = config.env, config.rollout
    worlds = {"env.name": env.name, "env.program": env.program, "env.tools": env.tools}
    named = [key for key, world in worlds.items() if world is not None]
    key = named[0] if named else "env.name"
    if len(named) > 1:
        yield f"an episode has one world; got {' and '.join(named)}. Next: leave one out"
    if not env.is_on:
        if env != EnvironmentConfig():
            yield (
                "the keys of env are read with env.name, env.tools or env.program alone. Next: env.name=file.py:Name, "
                "or leave them out"
            )
        if config.data.info_keys:
            yield (
                "data.info_keys are for env.name or env.program, and there is none; got "
                f"{', '.join(config.data.info_keys)}. Next: env.name=file.py:Name, or leave them out"
            )
        return
    yield from _tool_problems(config)
    yield from _history_problems(config)
    if env.turn_tokens is None or env.turn_tokens > rollout.max_tokens:
        yield (
            "env.turn_tokens must say how long one reply may be, at most rollout.max_tokens, which bounds the "
            f"episode; got {env.turn_tokens} and {rollout.max_tokens}. Next: env.turn_tokens={rollout.max_tokens} "
            "or less"
        )
    if env.program is not None and rollout.continuous:
        yield (
            "env.program needs rollout.continuous=false, since new weights would come between the turns of an episode; "
            "got true. Next: leave it out; with rollout.max_staleness weights wait for programs"
        )
    if env.program is not None and env.order == "free":
        yield "env.order=free is of env.name; programs go each at its own pace. Next: leave it out"
    if env.program is None and rollout.continuous != (env.order == "free" and rollout.max_staleness > 0):
        yield (
            "environments go in waves with weights that wait for a batch, or in free order with weights that come at "
            "any time (rollout.continuous) where sampling runs ahead; got "
            f"env.order={env.order}, rollout.max_staleness="
            f"{rollout.max_staleness} and rollout.continuous={str(rollout.continuous).lower()}. Next: "
            + ("env.order=free" if rollout.continuous else "rollout.continuous=true, or env.order=waves")
        )
    if config.reward.model.beside_critic:
        yield f"{key} and reward.model.device=critic do not go together. Next: reward.model.device=cpu"


def _history_problems(config: RunConfig) -> Iterator[str]:
    if config.env.history == "rerendered" and (config.env.name is None or not config.data.chat_template):
        yield (
            "env.history=rerendered needs env.name, and data.chat_template=true, whose template writes the dialogue; "
            f"got env.name={config.env.name} and {str(config.data.chat_template).lower()}. Next: env.history=kept"
        )


def _tool_problems(config: RunConfig) -> Iterator[str]:
    env = config.env
    if env.tools is None:
        if env.tool_parser is not None and env.program is None:
            yield "env.tool_parser is of env.tools and env.program. Next: env.tools=file.py, or leave it out"
        return
    if not config.data.chat_template:
        yield "env.tools needs data.chat_template=true, since the template tells the model of its tools; got false"
    if env.tool_timeout_s >= env.timeout_s:
        yield (
            "env.tool_timeout_s must be < env.timeout_s, or a late call would cost its episode; got "
            f"{env.tool_timeout_s:g} and {env.timeout_s:g}. Next: env.timeout_s={2 * env.tool_timeout_s:g}"
        )
