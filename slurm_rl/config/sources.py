"""Views of the config: one per source of a mixture and one per evaluation set, as of a run with only these rows."""

from collections.abc import Mapping
from typing import Any

from slurm_rl.config.judge import JudgeConfig
from slurm_rl.config.rows import ColumnsConfig, RowsConfig, SamplingConfig
from slurm_rl.config.run import RunConfig


def _view(config: RunConfig, rows: Mapping[str, Any], own: SamplingConfig) -> RunConfig:
    return config.model_copy(
        update={
            "data": config.data.model_copy(update={**rows, "sources": {}}),
            "env": config.env if own.env is None else own.env,
            "reward": config.reward if own.reward is None else own.reward,
            "rollout": config.rollout.model_copy(update=own.sampling()),
        }
    )


def set_key(name: str) -> str:
    """Return the key of an evaluation set, which differs from all names of sources."""
    return f"eval.sets.{name}"


def each_set(config: RunConfig) -> dict[str, RunConfig]:
    """Return the view of each evaluation set by its name."""
    views = {}
    for name, one in config.eval.sets.items():
        rows = {key: getattr(one, key) for key in ColumnsConfig.model_fields}
        rows |= {"train": one.data, "train_split": one.split, "eval": None, "num_eval": 0}
        views[name] = _view(config, rows, one)
    return views


def each_source(config: RunConfig) -> dict[str, RunConfig]:
    """Return the view of each source by its name, sorted; without sources, the config itself as "".

    >>> from slurm_rl.config.load import load_config
    >>> words = ["+exp=demo", "data.train=''", "+data.sources.sums.train=addition", "+data.sources.more.train=b.jsonl"]
    >>> {name: one.data.train for name, one in each_source(load_config(words)).items()}
    {'more': 'b.jsonl', 'sums': 'addition'}
    """
    views = {}
    # Sorted, since the order of a table in YAML must not change the mixture.
    for name, source in sorted(config.data.sources.items()):
        views[name] = _view(config, {key: getattr(source, key) for key in RowsConfig.model_fields}, source)
    return views or {"": config}


def list_judges(config: RunConfig) -> list[JudgeConfig]:
    """Return the language models that judge completions of any source or evaluation set."""
    judges = [one.reward.judge for one in (*each_source(config).values(), *each_set(config).values())]
    return [judge for judge in judges if judge.is_on]


def own_temperatures(config: RunConfig) -> dict[str, float]:
    """Return the temperature of each source; empty if all have the run's."""
    found = {name: one.rollout.temperature for name, one in each_source(config).items()}
    return found if set(found.values()) != {config.rollout.temperature} else {}


def episode_order(config: RunConfig) -> str | None:
    """Return env.schedule of the episodes that our loop runs (env.name, env.tools); None without such."""
    # A rule requires that all have the same.
    return min((env.schedule for env in config.environments if env.is_on and env.agent_command is None), default=None)


def has_programs(config: RunConfig) -> bool:
    """Return whether an agent program plays the episodes of any source."""
    return any(env.agent_command is not None for env in config.training_environments)


def blocks_on_weights(config: RunConfig) -> bool:
    """Return whether new weights wait for batches in flight, to keep one version within an episode."""
    return episode_order(config) == "lockstep" or has_programs(config)


def resumes_from_log(config: RunConfig) -> bool:
    """Return whether episodes in flight resume from the turn log, so that no checkpoint waits for them."""
    order, ahead = episode_order(config), config.rollout.max_off_policy_steps > 0
    return order == "async" or (order is None and has_programs(config) and not ahead)
