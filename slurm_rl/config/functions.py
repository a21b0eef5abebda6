"""Functions of the user's own, `file.py:name`: under which keys, called with what, and what they say of themselves.

    algorithm.advantage          def centred(rewards, known, *, needs_group=True): ...     as in math/advantages.py
    algorithm.loss               def loss(inputs, clip): ...                               as in math/losses.py
    algorithm.filters.function   def keep(groups, config): ...                             as in rl/algorithm/filters.py
    algorithm.group_reward       def judge(prompt, completions, rewards): ...         as in rl/algorithm/group_reward.py
    reward.function              def score(queries, prompts, labels): ...                  as in rewards/worker.py
    env.name                     class Guess(Environment): ...                             as in envs/environment.py
    env.tools                    def calculate(sum: str) -> str: ...                       as in envs/tools.py

The last three also below data.sources.<name> and eval.sets.<name>. A relative file is taken from the folder of the
command; submit copies it into the run's code, and every attempt runs that copy. What a row of tables.py says by its
flags, such a function says by the defaults of keyword-only parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import AfterValidator

from slurm_rl.config.section import checked_by
from slurm_rl.config.tables import ADVANTAGES, POLICY_LOSSES, AdvantageRow, LossRow, Row
from slurm_rl.config.user_files.load import is_file
from slurm_rl.config.user_files.read import Form, read_function
from slurm_rl.errors import ConfigError

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig
    from slurm_rl.config.ways import WaysConfig

_ADVANTAGE = Form("algorithm.advantage", ("rewards", "known"), ("needs_group", "per_token", "per_turn"))
_LOSS = Form("algorithm.loss", ("inputs", "clip"), ("per_sequence",))
_FILTER = Form("algorithm.filters.function", ("groups", "config"), ())
_GROUP_REWARD = Form("algorithm.group_reward", ("prompt", "completions", "rewards"), ())
_REWARD = Form("reward.function", ("queries", "prompts", "labels"))
_ENVIRONMENT = Form("env.name", ())
_TOOLS = Form("env.tools", (), takes_all=True)
_FORMS = (_ADVANTAGE, _LOSS, _FILTER, _GROUP_REWARD, _REWARD, _ENVIRONMENT, _TOOLS)
FORMS: Final[dict[str, Form]] = {form.key: form for form in _FORMS}


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
        if find_form(key) not in (_REWARD, _ENVIRONMENT, _TOOLS):
            Row(spec).load()


def find_form(key: str) -> Form:
    """The form of a key, which a source of a mixture has below its own name."""
    return next(form for name, form in FORMS.items() if key == name or key.endswith(f".{name}"))


def named_functions(config: RunConfig) -> dict[str, str]:
    """Key to `file.py:name` of each function of the user's own."""
    algorithm = config.algorithm
    named = {
        "algorithm.advantage": algorithm.advantage,
        "algorithm.loss": algorithm.loss,
        "algorithm.filters.function": algorithm.filters.function,
        "algorithm.group_reward": algorithm.group_reward,
    }
    own = {prefix: (part.reward, part.env) for prefix, part in _with_own_ways(config).items()}
    for prefix, (reward, env) in {"": (config.reward, config.env), **own}.items():
        named[f"{prefix}reward.function"] = None if reward is None else reward.function
        named[f"{prefix}env.name"] = None if env is None else env.name
        named[f"{prefix}env.tools"] = None if env is None else env.tools
    return {key: value for key, value in named.items() if value is not None and is_file(value)}


def _with_own_ways(config: RunConfig) -> dict[str, WaysConfig]:
    """The parts that have environments and rewards of their own, by the beginnings of their keys."""
    sources = {f"data.sources.{name}.": source for name, source in config.data.sources.items()}
    return {**sources, **{f"eval.sets.{name}.": one for name, one in config.eval.sets.items()}}


def program_files(config: RunConfig) -> list[str]:
    """`file.py:main` of each Python file here that is among the words of a program."""
    words = [word for program in _programs(config).values() for word in program]
    specs = [word if is_file(word) else f"{word}:main" for word in words if is_file(word) or word.endswith(".py")]
    return [spec for spec in specs if Path(spec.rpartition(":")[0]).is_file()]


def _programs(config: RunConfig) -> dict[str, tuple[str, ...]]:
    """The words of each env.program, by its key."""
    sections = {"": config.env, **{prefix: part.env for prefix, part in _with_own_ways(config).items()}}
    return {f"{prefix}env.program": env.program for prefix, env in sections.items() if env and env.program}


def check_function(config: RunConfig, key: str, spec: str) -> None:
    """Look at a function in its file, which nothing runs.

    Raises:
        ConfigError: it is not there, cannot be called so, or needs a larger group.
    """
    flags = read_function(spec, find_form(key))
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


_MODELS = ("model.path", "model.init_from", "critic.init_from", "reference.path", "reward.model.path")
_PATHS = ("data.train", "data.eval", *_MODELS)
_OWN_PATHS = ("train", "eval", "data", "reward.model.path")
"""Files and folders, or names of the hub and of built-in data."""


def with_absolute_files(config: RunConfig) -> RunConfig:
    """The config with every user's file as an absolute path, whatever folder a later command starts in."""
    for key, spec in named_functions(config).items():
        config = _replace(config, key.split("."), resolve_spec(spec))
    own = [f"{prefix}{path}" for prefix in _with_own_ways(config) for path in _OWN_PATHS]
    for key in (*_PATHS, *own):
        path = reduce(_below, key.split("."), config)
        # What is not here is a name of the hub, or told later.
        if isinstance(path, str) and path not in ("", "addition") and Path(path).exists():
            config = _replace(config, key.split("."), str(Path(path).absolute()))
    for key, program in _programs(config).items():
        config = _replace(config, key.split("."), tuple(map(_absolute_word, program)))
    return config


def _absolute_word(word: str) -> str:
    """Of a program: the path of what is a file here, all others as they are."""
    if is_file(word) and Path(word.rpartition(":")[0]).is_file():
        return resolve_spec(word)
    # What is found by PATH is no file of this folder.
    return str(Path(word).absolute()) if word.endswith(".py") and Path(word).is_file() else word


def _below(part: Any, name: str) -> Any:
    """What is under a name of a section or of a table; None below what may be null and is."""
    return part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)


def _replace(part: Any, keys: list[str], value: str | tuple[str, ...]) -> Any:
    """The section or table with another value under a key, or under one of what is in it."""
    name, *below = keys
    new: Any = _replace(_below(part, name), below, value) if below else value
    return {**part, name: new} if isinstance(part, Mapping) else part.model_copy(update={name: new})
