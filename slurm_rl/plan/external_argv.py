"""Build the command line of another trainer from the `external` section and the values of the plan, `${plan:...}`."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from slurm_rl.config.external import Argument, Arguments, ExternalConfig, Style
from slurm_rl.errors import ConfigError
from slurm_rl.plan.checkpoint_layouts import FIELDS, LAYOUTS, asks_of_checkpoint
from slurm_rl.plan.save_deadline import FORMS, find_limit_fields, is_limit_field

Settings = dict[str, Argument]
"""Argument names of the program and their values, in the order of the command line."""

WANDB_KEY = "from-environment"
"""Value of an argument for a W&B key: it switches W&B on, and the program uses WANDB_API_KEY."""

_SECRET_NAMES = {"use_wandb", "logger.wandb.key", "wandb_key", "hf_access_token", "hf_token"}
_PLAN_VALUE = re.compile(r"\$\{plan:([^}]*)\}")


@dataclass(frozen=True, kw_only=True)
class RunValues:
    """Values of `${plan:<field>}`, and of `${plan:<field>,<k>}` for a k-th of all GPUs."""

    nodes: int
    """Nodes of the run, or of a part of the GPUs."""
    gpus_per_node: int
    """GPUs per node of the run, or of a part of the GPUs."""
    checkpoints: str
    """Folder of the checkpoints."""
    export: str
    """Folder for the trained model."""

    @property
    def gpus(self) -> int:
        """GPUs of the run, or of the part."""
        return self.nodes * self.gpus_per_node

    def of_part(self, parts: int) -> Mapping[str, int]:
        """Return the numbers of one of `parts` equal parts of the GPUs.

        Raises:
            ConfigError: the GPUs, or the nodes of a part, are not divisible.
        """
        gpus = self.gpus // parts
        per_node = min(gpus, self.gpus_per_node)
        if self.gpus % parts or (per_node and gpus % per_node):
            raise ConfigError(
                f"{self.nodes} x {self.gpus_per_node} GPUs must divide into {parts} equal parts, each within a node or "
                "of whole nodes, for the arguments of external.args that say ${plan:...," + f"{parts}}}",
                seen=f"{self.gpus} GPUs",
                action="choose another cluster.num_nodes or cluster.gpus_per_node, or set these arguments to numbers",
            )
        return {"nodes": gpus // per_node if per_node else 1, "gpus_per_node": per_node, "gpus": gpus}


def build_external_argv(config: ExternalConfig, run: RunValues, *, resume: bool) -> tuple[str, ...]:
    """Return the command line of the external trainer.

    Args:
        resume: for an attempt after the first, which resumes from the newest checkpoint.

    Raises:
        ConfigError: a secret among the arguments, or a layout that does not fit.
    """
    settings = {**flatten(config.args), **(flatten(config.resume) if resume else {})}
    _check_secrets(config.argv, settings)
    _check_checkpoint(config)
    _check_launcher(config.argv, run)
    _check_nodes(config, run)
    return (*(_fill_text(word, run) for word in config.argv), *_render(settings, config.style, run))


def build_limit_words(config: ExternalConfig, run: RunValues) -> tuple[str, ...]:
    """Return the arguments for a job with a time limit, without those that `args` sets.

    Raises:
        ConfigError: a secret among the arguments, or an unknown or misplaced `${limit:...}`.
    """
    settings = flatten(config.before_limit)
    _check_secrets((), settings)
    elsewhere: Settings = {**flatten(config.args), **flatten(config.resume), "": [*config.argv]}
    for field in _fields_of(elsewhere, find_limit_fields):
        raise ConfigError(
            "${limit:...} is allowed only in external.before_limit, since a job may have no time limit",
            seen=f"${{limit:{field}}}",
        )
    for field in _fields_of(settings, find_limit_fields):
        if not is_limit_field(field):
            raise ConfigError(f"external.before_limit must ask for {FORMS}", seen=f"${{limit:{field}}}")
    named = {name.lstrip("+") for name in flatten(config.args)}
    return _render({name: it for name, it in settings.items() if name.lstrip("+") not in named}, config.style, run)


def _render(settings: Settings, style: Style, run: RunValues) -> tuple[str, ...]:
    return tuple(RENDER[style]({name: _fill(value, run) for name, value in settings.items() if value is not None}))


def flatten(tree: Arguments) -> Settings:
    """Join the levels of Hydra's tree to the dotted names of the program: {"a": {"b": 1}} is a.b=1.

    >>> flatten({"a": {"b": 1, "c": True}, "d": None})
    {'a.b': 1, 'a.c': True, 'd': None}

    Raises:
        ConfigError: a name occurs twice, so an override would change only one of them.
    """
    settings: Settings = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            below = {f"{name}.{rest}": argument for rest, argument in flatten(value).items()}
        else:
            below = {name: value}
        if twice := settings.keys() & below.keys():
            raise ConfigError(
                "an argument must be given once, with one level per dot of its name",
                seen=f"{min(twice)}, with dots and as a tree",
                action="in the preset write {a: {b: 1}} for a.b, so that external.args.a.b=2 changes it",
            )
        settings |= below
    return settings


def _fill(value: Argument, run: RunValues) -> Argument:
    if isinstance(value, list):
        return [_fill_text(item, run) if isinstance(item, str) else item for item in value]
    return _fill_text(value, run) if isinstance(value, str) else value


def _fill_text(text: str, run: RunValues) -> str:
    def value_of(match: re.Match[str]) -> str:
        name, comma, parts = match[1].partition(",")
        known: Mapping[str, object] = {**vars(run), "gpus": run.gpus}
        if comma:
            known = run.of_part(int(parts)) if parts.isdecimal() and int(parts) else {}
        if name not in known:
            raise ConfigError(
                "${plan:...} must ask for nodes, gpus_per_node, gpus, checkpoints or export, or for a part of a number",
                seen=match[0],
                action="write for example ${plan:gpus}, or ${plan:gpus,4} for a quarter of them",
            )
        return str(known[name])

    return _PLAN_VALUE.sub(value_of, text)


def _check_secrets(argv: tuple[str, ...], settings: Settings) -> None:
    """Refuse secrets as arguments, since a process list shows them."""
    words = {word.lstrip("-+").partition("=")[0] for word in argv}
    told = {name for name, value in settings.items() if value not in (None, False, WANDB_KEY)}
    for name in sorted(_SECRET_NAMES & (words | told)):
        raise ConfigError(
            f"{name} must not be an argument: every user of a node can read command lines",
            action="export WANDB_API_KEY or HF_TOKEN before submitting; if a program needs a W&B key to enable W&B, "
            f"pass {WANDB_KEY}",
        )


def _check_checkpoint(config: ExternalConfig) -> None:
    """Refuse a `${checkpoint:...}` without a value."""
    elsewhere: dict[str, Settings] = {"argv": {"argv": [*config.argv]}, "args": flatten(config.args)}
    for key, settings in elsewhere.items():
        if _fields_of(settings, asks_of_checkpoint):
            raise ConfigError(
                "${checkpoint:...} is allowed only in external.resume, since the first attempt has no checkpoint",
                seen=f"external.{key}",
            )
    asked = _fields_of(flatten(config.resume), asks_of_checkpoint)
    if asked and config.layout is None:
        raise ConfigError(
            "external.layout must be set if external.resume contains ${checkpoint:...}",
            action=f"external.layout= one of {', '.join(LAYOUTS)}",
        )
    if unknown := asked - set(FIELDS):
        raise ConfigError("${checkpoint:...} must be name or step", seen=", ".join(sorted(unknown)))


def _fields_of(settings: Settings, find: Callable[[str], list[str]]) -> set[str]:
    words = [word for value in settings.values() for word in (value if isinstance(value, list) else [value])]
    return {field for word in words if isinstance(word, str) for field in find(word)}


def _check_launcher(argv: tuple[str, ...], run: RunValues) -> None:
    if "--standalone" in argv and run.nodes > 1:
        raise ConfigError(
            "cluster.num_nodes must be 1 for torchrun --standalone, which starts only on the head node",
            seen=run.nodes,
            action="name only the program in external.argv, with external.start=torchrun",
        )


def _check_nodes(config: ExternalConfig, run: RunValues) -> None:
    if config.max_nodes is not None and run.nodes > config.max_nodes:
        raise ConfigError(
            f"cluster.num_nodes must be at most external.max_nodes={config.max_nodes}, since the program uses no more",
            seen=run.nodes,
            action=f"set cluster.num_nodes={config.max_nodes}",
        )


def render_flags(settings: Settings) -> list[str]:
    """Render for argparse: `--name value`, a bare `--name` for true, nothing for false."""
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
    """Render for Hydra and OmegaConf: `name=value`."""
    return [f"{name}={_yaml(value)}" for name, value in settings.items()]


RENDER: Final[dict[Style, Callable[[Settings], list[str]]]] = {"flags": render_flags, "overrides": render_overrides}


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
