"""Compose overrides with Hydra and validate them with pydantic: from the command line to a RunConfig.

Defaults come from the pydantic models, which are registered with Hydra as a schema node, so that `optim.lr=1e-6`
overrides a key that no YAML file repeats.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_rl.config.detect_gpus import fill_in_gpus
from slurm_rl.config.overrides import GROUPS, no_secrets_in_configs, normalise_words, render_words
from slurm_rl.config.parse import parse_config
from slurm_rl.config.preset_folders import conf_dir, site_dirs
from slurm_rl.config.run import RunConfig
from slurm_rl.config.section import Section
from slurm_rl.errors import ConfigError

SCHEMA_NAME = "slurm_rl_schema"


def section_defaults(model: type[Section]) -> dict[str, Any]:
    """Return the nested defaults of all fields; a required section gives its own defaults."""
    tree: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, Section):
            tree[name] = default.model_dump(mode="json")
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            tree[name] = section_defaults(field.annotation)
        else:
            tree[name] = list(default) if isinstance(default, tuple) else default
    return tree


@functools.cache
def register_schema() -> None:
    """Register, once per process, our preset source and the default tree, the first entry of config.yaml's defaults."""
    from hydra.core.config_store import ConfigStore

    from slurm_rl.config.preset_source import register_source

    register_source()
    defaults = section_defaults(RunConfig)
    defaults["cluster"] |= {"accelerator": None, "gpus_per_node": None}  # see detect_gpus.py
    ConfigStore.instance().store(name=SCHEMA_NAME, node=defaults)


def render_search_path(folders: Sequence[Path]) -> list[str]:
    """Return the override that adds these folders to Hydra's search path; none without folders."""
    return render_words({"hydra.searchpath": [f"preset://{path}" for path in folders]}) if folders else []


def _refuse_hidden(words: Sequence[str], folders: Sequence[Path]) -> None:
    """Raise if a word selects the user's preset, but Hydra would take the shipped one of the same name."""
    for word in words:
        group, _, text = word.lstrip("+").partition("=")
        names = text.strip("[]").split(",") if group in GROUPS else []
        for file in (file for folder in folders for file in (folder / group).glob("*.yaml") if file.stem in names):
            shipped = conf_dir() / group / file.name
            if shipped.is_file() and shipped.read_bytes() != file.read_bytes():
                rule = "a preset must not have the name of a built-in one, which wins"
                raise ConfigError(rule, seen=str(file), action=f"rename the file, and write {group}=<the new name>")


@contextlib.contextmanager
def open_hydra(config_dir: str | None, words: Sequence[str] = ()) -> Iterator[list[str]]:
    """Initialize Hydra with our presets and yield the overrides that add the site's.

    Args:
        words: the overrides that will be composed.
    """
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    register_schema()
    folders = site_dirs(config_dir)
    _refuse_hidden(words, folders)
    search_path = render_search_path(folders)
    # The caller may be a Hydra application itself.
    around = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with no_secrets_in_configs(), initialize_config_dir(str(conf_dir()), version_base="1.3"):
            yield search_path
    finally:
        GlobalHydra.instance().hydra = around


def compose(overrides: Sequence[str], *, config_dir: str | None = None) -> dict[str, Any]:
    """Compose overrides to plain dicts and lists with resolved interpolations."""
    from slurm_rl.config.compose_errors import explain_hydra

    with open_hydra(config_dir, overrides) as extra, explain_hydra():
        return resolve_tree(hydra_compose([*normalise_words(overrides), *extra]))


def hydra_compose(words: Sequence[str]) -> Any:
    """Return the unresolved config that Hydra composes from these words, within `open_hydra`."""
    from hydra import compose

    return compose("config", overrides=list(words))


def _keep(name: str, *words: object) -> str:
    return f"${{{name}:{','.join(map(str, words))}}}"


def resolve_tree(config: Any) -> dict[str, Any]:
    """Return a composed config as plain dicts and lists with resolved interpolations and the GPUs of this machine."""
    from omegaconf import OmegaConf

    fill_in_gpus(config)
    # The plan resolves these later; see plan/external_argv.py.
    for name in ("plan", "checkpoint", "limit"):
        OmegaConf.register_new_resolver(name, functools.partial(_keep, name), replace=True)
    tree = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def load_config(
    overrides: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
    *,
    config_dir: str | None = None,
    is_run: bool = True,
) -> RunConfig:
    """Compose and validate, as the command line does.

    Args:
        overrides: `key=value` and `+group=option`.
        values: overrides with Python values, which need no quotes: {"optim.lr": 1e-4, "data.train": Path("a b.jsonl")}.
        config_dir: folder with your own presets.
        is_run: see `parse_config`.

    Raises:
        ConfigError: see `parse_config`.

    >>> load_config(["+exp=demo"], {"optim.lr": 1e-4}).optim.lr
    0.0001
    """
    if isinstance(overrides, str) or not all(isinstance(word, str) for word in overrides):
        action = "write ['+exp=demo', 'optim.lr=1e-4']; a dict of keys and values comes second"
        raise ConfigError("overrides must be a list of strings", seen=repr(overrides), action=action)
    words = [*overrides, *render_words(values or {})]
    return parse_config(compose(words, config_dir=config_dir), is_run=is_run)
