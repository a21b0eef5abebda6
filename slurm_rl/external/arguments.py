"""What all external trainers share: the run as they see it, tables of names, and settings passed through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_rl.config.external import Argument, ExternalConfig
from slurm_rl.errors import ConfigError

Settings = dict[str, Argument]
"""The program's own names to values, in the order of the command line."""

WANDB_KEY = "from-environment"
"""Switches W&B on where a program wants a key as argument; it then uses WANDB_API_KEY, which it prefers."""

_SECRET_NAMES = {"use_wandb", "logger.wandb.key", "wandb_key", "hf_access_token", "hf_token"}
_GENERAL = {"program", "method", "flags", "start", "argv", "args", "gpus", "colocate", "tensor_parallel"}


@dataclass(frozen=True, kw_only=True)
class ExternalRun:
    """The run around the program."""

    name: str
    """Name of the run; also where W&B shows it."""
    nodes: int
    """Machines of the cluster."""
    gpus_per_node: int
    """Accelerators of one machine."""
    checkpoints: str
    """Folder for what it resumes from."""
    output: str
    """Folder for the trained model."""
    resume: bool = False
    """Not the first attempt: go on from the newest checkpoint."""

    @property
    def num_gpus(self) -> int:
        return self.nodes * self.gpus_per_node


def map_fields(config: ExternalConfig, names: Mapping[str, str], handled: Iterable[str] = ()) -> Settings:
    """Rename the fields that are set.

    Args:
        names: our field to the program's name.
        handled: fields that the caller turns into arguments itself.

    Raises:
        ConfigError: a field is set that the program has no argument for.
    """
    known = {*names, *handled, *_GENERAL}
    values = {name: getattr(config, name) for name in type(config).model_fields}
    unknown = [name for name, value in values.items() if name not in known and value is not None]
    if unknown:
        raise ConfigError(
            f"external.{unknown[0]} must be null for {_describe(config)}, which has no argument for it",
            seen=values[unknown[0]],
            action=f"remove external.{unknown[0]}, or say it under external.args in the program's own words",
        )
    return {theirs: values[ours] for ours, theirs in names.items() if values[ours] is not None}


def merge(config: ExternalConfig, settings: Settings) -> Settings:
    """Lay the user's own settings over ours.

    Raises:
        ConfigError: one of them, or a word of `argv`, is a secret, which a process list would show.
    """
    words = {word.lstrip("-+").partition("=")[0] for word in config.argv}
    for name in [*config.args, *words]:
        if name in _SECRET_NAMES and config.args.get(name) not in (None, False, WANDB_KEY):
            raise _secret(name)
        if name in words & _SECRET_NAMES:
            raise _secret(name)
    return {name: value for name, value in {**settings, **config.args}.items() if value is not None}


def unknown_choice(field: str, value: object, config: ExternalConfig, known: Iterable[str]) -> ConfigError:
    """An error for a value of ours that the program has no word for."""
    return ConfigError(
        f"external.{field} must be one of {', '.join(known)} for {_describe(config)}",
        seen=value,
        action=f"choose one of them, or leave it null and set it under external.args in {config.program}'s words",
    )


def _describe(config: ExternalConfig) -> str:
    return f"{config.program} ({config.method})" if config.program == "openrlhf" else config.program


def _secret(name: str) -> ConfigError:
    return ConfigError(
        f"{name} must not be an argument: every user of a node can read command lines",
        action="export WANDB_API_KEY or HF_TOKEN before submitting; set external.wandb_project to switch W&B on",
    )


def render_flags(settings: Settings) -> list[str]:
    """As argparse reads them: `--name value`, a bare `--name` for true, nothing for false."""
    words: list[str] = []
    for name, value in settings.items():
        if value is False:
            continue
        words.append(f"--{name}")
        if isinstance(value, list):
            words += [_plain(item) for item in value]
        elif value is not True:
            words.append(_plain(value))
    return words


def render_overrides(settings: Settings) -> list[str]:
    """As Hydra and OmegaConf read them: `name=value`."""
    return [f"{name}={_yaml(value)}" for name, value in settings.items()]


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _yaml(value: Argument) -> str:
    if isinstance(value, list):
        return f"[{','.join(_yaml(item) for item in value)}]"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and any(char in value for char in "=,{}[]()':\"\\ \t$#&*!|>%@`"):
        # Double quotes and their escapes mean the same to Hydra and to YAML.
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return _plain(value)
