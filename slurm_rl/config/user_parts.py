"""Functions and classes of the user, `file.py:name`, and the keys that take them.

    algorithm.advantage          def centred(rewards, known, *, needs_group=True): ...     see algorithms/advantages.py
    algorithm.loss               def loss(inputs, clip): ...                               see algorithms/losses.py
    algorithm.filters.function   def keep(groups, config): ...                             see algorithms/filters.py
    algorithm.group_reward       def judge(prompt, completions, rewards): ...         see algorithms/shaping.py
    reward.function              def score(queries, prompts, labels): ...                  see rewards/worker.py
    env.name                     class Guess(Environment): ...                             see envs/environment.py
    env.tools                    def calculate(sum: str) -> str: ...                       see envs/tools.py

The last three are also valid below data.sources.<name> and eval.sets.<name>. Submission makes relative paths absolute
and copies the files into the run, and every attempt uses that copy. Flags of a row in registry.py are defaults of
keyword-only parameters.
"""

from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any, Final

from slurm_rl.config.algorithm import explain_small_group
from slurm_rl.config.judge import read_prompt
from slurm_rl.config.registry import ADVANTAGE_FORM, LOSS_FORM, Entry
from slurm_rl.config.rows import SamplingConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.config.user_files.load import is_file
from slurm_rl.config.user_files.read import Form, read_function
from slurm_rl.errors import ConfigError

_REWARD = Form("reward.function", ("queries", "prompts", "labels"))
_ENVIRONMENT = Form("env.name", ())
_TOOLS = Form("env.tools", (), takes_all=True)
_FORMS = (
    ADVANTAGE_FORM,
    LOSS_FORM,
    Form("algorithm.filters.function", ("groups", "config"), ()),
    Form("algorithm.group_reward", ("prompt", "completions", "rewards"), ()),
    *(_REWARD, _ENVIRONMENT, _TOOLS),
)
FORMS: Final[dict[str, Form]] = {form.key: form for form in _FORMS}


def load_parts(config: RunConfig) -> None:
    """Import the user's parts of the algorithm; reward and environment workers import theirs.

    Raises:
        ConfigError: a file cannot be imported.
    """
    for key, spec in named_functions(config).items():
        if find_form(key) not in (_REWARD, _ENVIRONMENT, _TOOLS):
            Entry(spec).load()


def find_form(key: str) -> Form:
    """Return the form of a key, which may be below a source or evaluation set."""
    return next(form for name, form in FORMS.items() if key == name or key.endswith(f".{name}"))


def named_functions(config: RunConfig) -> dict[str, str]:
    """Return each user function, `file.py:name`, by its key."""
    algorithm = config.algorithm
    named = {
        "algorithm.advantage": algorithm.advantage,
        "algorithm.loss": algorithm.loss,
        "algorithm.filters.function": algorithm.filters.function,
        "algorithm.group_reward": algorithm.group_reward,
    }
    own = {prefix: (part.reward, part.env) for prefix, part in _own_sections(config).items()}
    for prefix, (reward, env) in {"": (config.reward, config.env), **own}.items():
        named[f"{prefix}reward.function"] = None if reward is None else reward.function
        named[f"{prefix}env.name"] = None if env is None else env.name
        named[f"{prefix}env.tools"] = None if env is None else env.tools
    return {key: value for key, value in named.items() if value is not None and is_file(value)}


def _own_sections(config: RunConfig) -> dict[str, SamplingConfig]:
    """Return sources and evaluation sets by the prefix of their keys."""
    sources = {f"data.sources.{name}.": source for name, source in config.data.sources.items()}
    return {**sources, **{f"eval.sets.{name}.": one for name, one in config.eval.sets.items()}}


def program_files(config: RunConfig) -> list[str]:
    """Return `file.py:main` of each local Python file among the words of agent programs."""
    words = [word for program in _programs(config).values() for word in program]
    specs = [word if is_file(word) else f"{word}:main" for word in words if is_file(word) or word.endswith(".py")]
    return [spec for spec in specs if Path(spec.rpartition(":")[0]).is_file()]


def _programs(config: RunConfig) -> dict[str, tuple[str, ...]]:
    """Return the words of each env.agent_command by its key."""
    sections = {"": config.env, **{prefix: part.env for prefix, part in _own_sections(config).items()}}
    return {
        f"{prefix}env.agent_command": env.agent_command for prefix, env in sections.items() if env and env.agent_command
    }


def check_function(config: RunConfig, key: str, spec: str) -> None:
    """Check a user function without importing its file.

    Raises:
        ConfigError: it does not exist, has another signature, or needs a larger group.
    """
    flags = read_function(spec, find_form(key))
    if flags.get("needs_group") and config.algorithm.group_size < 2:
        raise ConfigError(explain_small_group(spec, config.algorithm.group_size))


def resolve_spec(spec: str) -> str:
    """Return `file.py:name` with an absolute path; unchanged if `~name` is unknown, which a check reports later."""
    file, _, name = spec.rpartition(":")
    try:
        return f"{Path(file).expanduser().absolute()}:{name}"
    except RuntimeError:
        return spec


# Files and folders, or names of the hub and of built-in data.
_PATHS = (
    *(
        "data.train",
        "data.eval",
        "model.path",
        "model.from_config",
        "model.init_from",
        "critic.init_from",
        "reference.path",
    ),
    "reward.model.path",
    "reward.judge.server.model",
)
_OWN_PATHS = ("train", "eval", "data", "reward.model.path")


def with_absolute_files(config: RunConfig) -> RunConfig:
    """Return the config with absolute paths of local files, and the texts of judges' prompts, for any later folder."""
    for key, spec in named_functions(config).items():
        config = _replace(config, key.split("."), resolve_spec(spec))
    for key, path in named_paths(config).items():
        # A path that does not exist here is a name of the hub, or is reported later.
        found = Path(path).absolute() if Path(path).exists() else _find_model(config, key, path)
        if found is not None:
            config = _replace(config, key.split("."), str(found))
    for key in ("reward.judge.prompt", *(f"{prefix}reward.judge.prompt" for prefix in _own_sections(config))):
        # The run keeps the text, so later edits of the file do not reach it.
        if isinstance(prompt := reduce(_below, key.split("."), config), str) and prompt:
            config = _replace(config, key.split("."), read_prompt(prompt))
    for key, program in _programs(config).items():
        config = _replace(config, key.split("."), tuple(map(_absolute_word, program)))
    return config


def named_paths(config: RunConfig) -> dict[str, str]:
    """Return files, folders and hub names of models and data by their keys."""
    own = [f"{prefix}{path}" for prefix in _own_sections(config) for path in _OWN_PATHS]
    found: dict[str, Any] = {key: reduce(_below, key.split("."), config) for key in (*_PATHS, *own)}
    return {key: path for key, path in found.items() if isinstance(path, str) and path not in ("", "addition")}


def is_model(key: str) -> bool:
    """Return whether this key of `named_paths` names a model, not data."""
    return not key.endswith((".train", ".eval", ".data"))


def _find_model(config: RunConfig, key: str, path: str) -> Path | None:
    """Return the local folder of a model that is named as on the hub."""
    if config.external is not None or not is_model(key):
        return None
    from slurm_rl.config.hub_names import find_folder, is_hub_name

    if not is_hub_name(path):
        return None
    return find_folder(path, config.data.root, use_cache=not config.cluster.internet)


def _absolute_word(word: str) -> str:
    """Return an absolute path for a word that is a local Python file, other words unchanged."""
    if is_file(word) and Path(word.rpartition(":")[0]).is_file():
        return resolve_spec(word)
    return str(Path(word).absolute()) if word.endswith(".py") and Path(word).is_file() else word


def _below(part: Any, name: str) -> Any:
    """Return the entry of a section or table; None below None."""
    return part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)


def _replace(part: Any, keys: list[str], value: str | tuple[str, ...]) -> Any:
    """Return the section or table with another value under a nested key."""
    name, *below = keys
    new: Any = _replace(_below(part, name), below, value) if below else value
    return {**part, name: new} if isinstance(part, Mapping) else part.model_copy(update={name: new})
