"""Functions of the user's own, `file.py:name`: under which keys, called with what, and what they say of themselves.

    algorithm.advantage          def centred(rewards, known, *, needs_group=True): ...     as in math/advantages.py
    algorithm.loss               def loss(inputs, clip): ...                               as in math/losses.py
    algorithm.filters.function   def keep(groups, config): ...                             as in rl/algorithm/filters.py
    reward.function              def score(queries, prompts, labels): ...                  as in rewards/worker.py
    env.name                     class Guess(Environment): ...                             as in envs/environment.py

A relative file is taken from the folder of the command; submit copies it into the run's code, and every attempt runs
that copy. What a row of tables.py says by its flags, such a function says by the defaults of keyword-only parameters.
"""

from __future__ import annotations

from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from pydantic import AfterValidator

from slurm_rl.config.section import Section, checked_by
from slurm_rl.config.tables import ADVANTAGES, POLICY_LOSSES, AdvantageRow, LossRow, Row
from slurm_rl.errors import ConfigError
from slurm_rl.functions.load import is_file
from slurm_rl.functions.read import Form, read_function

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig

SomeSection = TypeVar("SomeSection", bound=Section)

_ADVANTAGE = Form("algorithm.advantage", ("rewards", "known"), ("needs_group", "per_token"))
_LOSS = Form("algorithm.loss", ("inputs", "clip"), ("per_sequence",))
_FILTER = Form("algorithm.filters.function", ("groups", "config"), ())
_REWARD = Form("reward.function", ("queries", "prompts", "labels"))
_ENVIRONMENT = Form("env.name", ())
FORMS: Final[dict[str, Form]] = {form.key: form for form in (_ADVANTAGE, _LOSS, _FILTER, _REWARD, _ENVIRONMENT)}


@cache
def find_advantage(name: str) -> AdvantageRow:
    """The row of a built-in advantage, or one for a user's function."""
    return AdvantageRow(name, **read_function(name, _ADVANTAGE)) if is_file(name) else ADVANTAGES[name]


@cache
def find_loss(name: str) -> LossRow:
    """The row of a built-in loss, or one for a user's function."""
    return LossRow(name, **read_function(name, _LOSS)) if is_file(name) else POLICY_LOSSES[name]


def load_parts(config: RunConfig) -> None:
    """Import the user's parts of the algorithm; rewards and environments are their workers' affair.

    Raises:
        ConfigError: a file that cannot be run, before anything is started for it.
    """
    for key, spec in named_functions(config).items():
        if key not in (_REWARD.key, _ENVIRONMENT.key):
            Row(spec).load()


def named_functions(config: RunConfig) -> dict[str, str]:
    """Key to `file.py:name` of each function of the user's own."""
    algorithm = config.algorithm
    ours = (algorithm.advantage, algorithm.loss, algorithm.filters.function)
    values = (*ours, config.reward.function, config.env.name)
    return {key: value for key, value in zip(FORMS, values, strict=True) if value is not None and is_file(value)}


def check_function(config: RunConfig, key: str, spec: str) -> None:
    """Look at a function in its file, which nothing runs.

    Raises:
        ConfigError: it is not there, cannot be called so, or needs a larger group.
    """
    flags = read_function(spec, FORMS[key])
    if flags.get("needs_group") and config.algorithm.group_size < 2:
        raise ConfigError(explain_small_group(spec, config.algorithm.group_size))


def file_of(key: str) -> AfterValidator:
    """A value that is `file.py:name`."""

    def check(value: str) -> None:
        if not is_file(value):
            raise ValueError(f"{key} must be file.py:name; got {value!r}")

    return checked_by(check)


def explain_small_group(advantage: str, group_size: int) -> str:
    """Why an advantage that compares the completions of one prompt is refused."""
    return (
        f"algorithm.group_size must be >= 2 for advantage {advantage!r}, which compares the completions of one prompt; "
        f"got {group_size}. Next: set algorithm.group_size=8, or algorithm.advantage=reinforce_pp or gae"
    )


def resolve_spec(spec: str) -> str:
    """`file.py:name` with an absolute path; without change where `~name` is nobody, which the check then says."""
    file, _, name = spec.rpartition(":")
    try:
        return f"{Path(file).expanduser().absolute()}:{name}"
    except RuntimeError:
        return spec


_PATHS = ("data.train", "data.eval", "model.path", "model.init_from", "critic.init_from", "reward.model.path")
"""Files and folders, or names of the hub and of built-in data."""


def with_absolute_files(config: RunConfig) -> RunConfig:
    """The config with every user's file as an absolute path, whatever folder a later command starts in."""
    for key, spec in named_functions(config).items():
        config = _replace(config, key.split("."), resolve_spec(spec))
    for key in _PATHS:
        path = reduce(getattr, key.split("."), config)
        # What is not here is a name of the hub, or told later.
        if isinstance(path, str) and path not in ("", "addition") and Path(path).exists():
            config = _replace(config, key.split("."), str(Path(path).absolute()))
    return config


def _replace(section: SomeSection, keys: list[str], value: str) -> SomeSection:
    """The section with another value under a key, or under one of a section in it."""
    name, *below = keys
    return section.model_copy(update={name: _replace(getattr(section, name), below, value) if below else value})
