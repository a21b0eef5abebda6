"""Sources of a mixture: what each is made of, and the config of a run that had this one alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.config.reward import RewardConfig
from slurm_rl.config.rows import RowsConfig
from slurm_rl.config.section import PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig

LEAST_SHARE: Final = 0.001
"""Of the prompts: one in a block, see data/mixing.py."""


class AloneConfig(RowsConfig):
    """Rows with a way to sample and to judge of their own."""

    env: EnvironmentConfig | None = None
    """Its environment; null: that of the run. `{}` where the run has one and this is of single turns."""
    reward: RewardConfig | None = None
    """How its completions are scored; null: as those of the run."""
    max_tokens: PositiveInt | None = None
    """Its longest completion, at most rollout.max_tokens; null: that."""


class SourceConfig(AloneConfig):
    """Part of the prompts that a run is trained on."""

    weight: PositiveFloat = 1.0
    """Its share of the prompts is this over the sum of all weights."""


def config_alone(config: RunConfig, key: str, section: AloneConfig) -> RunConfig:
    """The config of a run that had these rows alone, not checked.

    Args:
        key: of the section, for messages.
    """
    rows = {name: getattr(section, name) for name in RowsConfig.model_fields}
    rollout = {} if section.max_tokens is None else {"max_tokens": section.max_tokens}
    return config.model_copy(
        update={
            "data": config.data.model_copy(update={**rows, "sources": {}}),
            "env": config.env if section.env is None else section.env,
            "reward": config.reward if section.reward is None else section.reward,
            "rollout": config.rollout.model_copy(update=rollout),
        }
    )


def each_source(config: RunConfig) -> dict[str, RunConfig]:
    """The config of each source by its name; of a run without sources, itself as "".

    >>> from slurm_rl.config.load import load_config
    >>> words = ["+exp=demo", "data.train=''", "+data.sources.sums.train=addition", "+data.sources.more.train=b.jsonl"]
    >>> {name: one.data.train for name, one in each_source(load_config(words)).items()}
    {'more': 'b.jsonl', 'sums': 'addition'}
    """
    sources = config.data.sources
    # Sorted: a table that is written in another order is the same mixture.
    found = {name: config_alone(config, f"data.sources.{name}", sources[name]) for name in sorted(sources)}
    return found or {"": config}


def episode_order(config: RunConfig) -> str | None:
    """How episodes of several turns go; None where there are none."""
    orders = {one.env.order for one in each_source(config).values() if one.env.name is not None}
    return min(orders, default=None)  # all the same, or refused


def source_problems(config: RunConfig) -> Iterator[str]:
    """What is wrong with how each source is sampled and judged."""
    if len({one.env.order for one in each_source(config).values() if one.env.name is not None}) > 1:
        yield "env.order must be the same for all environments of a run; got free and waves. Next: choose one"
    for name, one in each_source(config).items():
        prefix = f"data.sources.{name}: " if name else ""
        if name and not one.data.train:
            yield f"data.sources.{name}.train must say what to train on; got nothing. Next: name a file, or take it out"
        if one.rollout.max_tokens > config.rollout.max_tokens:
            yield (
                f"{prefix}max_tokens must be at most rollout.max_tokens, for which engines have room; got "
                f"{one.rollout.max_tokens} > {config.rollout.max_tokens}. Next: raise rollout.max_tokens"
            )
        if name and one.reward.service.enabled and one.reward is not config.reward:
            yield (
                f"{prefix}reward.service.enabled is for the reward of the whole run, and one source cannot have a "
                "service of its own. Next: reward.url of one that you start, or leave it out"
            )
        if name and one.reward.model.beside_critic:
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
    if env.turn_tokens is None or env.turn_tokens > rollout.max_tokens:
        yield (
            "env.turn_tokens must say how long one reply may be, at most rollout.max_tokens, which bounds the "
            f"episode; got {env.turn_tokens} and {rollout.max_tokens}. Next: env.turn_tokens={rollout.max_tokens} "
            "or less"
        )
    if env.program is not None and (rollout.max_staleness or rollout.continuous):
        yield (
            "env.program needs rollout.max_staleness=0 and rollout.continuous=false, since new weights would come "
            f"between the turns of an episode; got {rollout.max_staleness} and {rollout.continuous}"
        )
    if env.program is not None and env.order == "free":
        yield "env.order=free is of env.name; programs go each at its own pace. Next: leave it out"
    if env.name is not None and rollout.continuous != (env.order == "free" and rollout.max_staleness > 0):
        yield (
            "environments go in waves with weights that wait for a batch, or in free order with weights that come at "
            "any time (rollout.continuous) where sampling runs ahead; got "
            f"env.order={env.order}, rollout.max_staleness="
            f"{rollout.max_staleness} and rollout.continuous={str(rollout.continuous).lower()}. Next: "
            + ("env.order=free" if rollout.continuous else "rollout.continuous=true, or env.order=waves")
        )
    if config.reward.model.beside_critic:
        yield f"{key} and reward.model.device=critic do not go together. Next: reward.model.device=cpu"


def _tool_problems(config: RunConfig) -> Iterator[str]:
    env = config.env
    if env.tools is None:
        if env.tool_parser is not None:
            yield "env.tool_parser is read with env.tools alone. Next: env.tools=file.py, or leave it out"
        return
    if not config.data.chat_template:
        yield "env.tools needs data.chat_template=true, since the template tells the model of its tools; got false"
    if env.tool_timeout_s >= env.timeout_s:
        yield (
            "env.tool_timeout_s must be < env.timeout_s, or a late call would cost its episode; got "
            f"{env.tool_timeout_s:g} and {env.timeout_s:g}. Next: env.timeout_s={2 * env.tool_timeout_s:g}"
        )
