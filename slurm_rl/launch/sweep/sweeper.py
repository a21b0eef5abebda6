"""Hydra's part of a sweep: its sweepers generate the overrides, and our plugin in `hydra_plugins` passes them on.

The configs of its runs are exactly Hydra's, at a fiftieth of its time. Hydra composes in two steps: a defaults list
from the choices of groups, then values set on the result, one override after the other. The runs of a sweep share most
of the first step, which is the slow one. So it is done once for each choice of groups, and the second by Hydra's own
function on a copy. Runs that differ only in plain values (`seed=range(100)`) share one composed tree, in which these
values are set, if nothing in the config refers to their keys.
"""

import itertools
import pickle
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from slurm_rl.config.compose_errors import explain_hydra
from slurm_rl.config.load import hydra_compose, resolve_tree
from slurm_rl.errors import ConfigError, SlurmRLError
from slurm_rl.run_dir.io_errors import annotate_path

Outcome = float | SlurmRLError | None
"""The value of a run, or the reason without one; None if the sweeper needs no values."""
BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
RunBatch = Callable[[list[list[str]], bool], Sequence[Outcome]]
"""Runs a batch of overrides; waits for the outcomes when the second argument is true."""
Signature = tuple[str, ...]
"""Key of a composed tree: overrides without plain values."""
PlainValues = list[tuple[str, Any]]
_DECIDES_GPUS = ("cluster.launcher", "cluster.accelerator", "cluster.gpus_per_node")
"""Keys on which the other values of a composed tree depend; see config/detect_gpus.py."""
"""Dotted keys and their values, in the order of the words."""


def compose_sweep(overrides: Sequence[str], extra: Sequence[str]) -> DictConfig:
    """Return the config of the sweep with Hydra's part; swept keys have their defaults."""
    for key in ("hydra/launcher", "hydra.launcher", "hydra.sweep.subdir"):
        if named := [word for word in overrides if word.lstrip("+~").startswith(key)]:
            raise ConfigError(
                f"{key} is set by slurm_rl in a sweep",
                seen=named[0],
                action="remove it; +cluster selects where runs execute",
            )
    hydra = GlobalHydra.instance().hydra
    assert hydra is not None
    with explain_hydra():
        return hydra.compose_config(
            config_name="config",
            overrides=["hydra/launcher=slurm_rl", *overrides, *extra],
            run_mode=RunMode.MULTIRUN,
            with_log_configuration=False,
        )


def run_sweeper(config: DictConfig, folder: Path, run_batch: RunBatch) -> None:
    """Let the sweeper of `config` sweep, with files of its own in `folder`.

    Hydra's basic sweeper needs no values: its batches are run as one after it is done, so that all configs are
    checked before anything is submitted. Any other sweeper gets the outcomes of each batch.
    """
    hydra = GlobalHydra.instance().hydra
    assert hydra is not None
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.sweep.dir = str(folder)
    # Compared by name, since the scan for plugins imports their classes again.
    needs_values = config.hydra.sweeper["_target_"] != BASIC_SWEEPER
    collected: list[list[str]] = []

    def launch(batch: list[list[str]]) -> Sequence[Outcome]:
        if needs_values:
            return run_batch(batch, True)
        collected.extend(batch)
        return [None] * len(batch)

    with explain_hydra():
        callbacks = Callbacks(config)
        callbacks.on_multirun_start(config=config, config_name="config")
        context = HydraContext(config_loader=hydra.config_loader, callbacks=callbacks)
        sweeper = Plugins.instance().instantiate_sweeper(config=config, hydra_context=context, task_function=launch)
        # Ours checks every config; Hydra's check takes minutes for a thousand.
        sweeper.validate_batch_is_legal = lambda batch: None
        with annotate_path(folder):  # Hydra writes a file of its own there
            sweeper.sweep(arguments=OmegaConf.to_container(config.hydra.overrides.task, resolve=False))
        if collected:
            run_batch(collected, False)
        callbacks.on_multirun_end(config=config, config_name="config")


class Composer:
    """Composes any number of configs; lives within `open_hydra`.

    Args:
        extra: the overrides that `open_hydra` yields.
    """

    def __init__(self, extra: Sequence[str]) -> None:
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        self._loader = hydra.config_loader
        self._extra = list(extra)
        # With the site's presets in its search path, unlike the loader's own.
        _, self._repository = self._loader._parse_overrides_and_create_caching_repo("config", self._extra)
        self._parser = OverridesParser.create()
        self._parsed: dict[str, Override] = {}
        self._is_group: dict[str, bool] = {}
        self._bases: dict[Signature, tuple[bytes, list[str]]] = {}
        self._trees: dict[tuple[Signature, Signature], bytes] = {}

    def compose(self, overrides: Sequence[str]) -> dict[str, Any]:
        """Return the tree that `slurm_rl.config.load.compose` makes of these overrides."""
        with explain_hydra():
            structural, values = self._split(overrides)
            signature, plain = sign(values, self._base(structural)[1])
            if (known := self._trees.get((structural, signature))) is not None:
                tree: dict[str, Any] = pickle.loads(known)
                if set_values(tree, plain):
                    return tree
            tree = resolve_tree(self._set(structural, values))
            self._trees[structural, signature] = pickle.dumps(tree, protocol=5)
            return tree

    def compose_config(self, overrides: Sequence[str]) -> DictConfig:
        """Return the unresolved config that Hydra composes from these overrides, or raise Hydra's error."""
        return self._set(*self._split(overrides))

    def _split(self, overrides: Sequence[str]) -> tuple[Signature, list[Override]]:
        """Return the overrides that Hydra composes, and those that only set values."""
        parsed = [self._parse(text) for text in overrides]
        self._loader.validate_sweep_overrides_legal(parsed, run_mode=RunMode.RUN, from_shell=False)
        structural = tuple(item.input_line for item in parsed if self._is_structural(item))
        return structural, [item for item in parsed if not self._is_structural(item)]

    def _set(self, structural: Signature, values: list[Override]) -> DictConfig:
        config: DictConfig = pickle.loads(self._base(structural)[0])
        ConfigLoaderImpl._apply_overrides_to_config(values, config)
        return config

    def _parse(self, text: str) -> Override:
        if text not in self._parsed:
            self._parsed[text] = self._parser.parse_overrides([text])[0]
        return self._parsed[text]

    def _is_structural(self, override: Override) -> bool:
        """Whether Hydra gives it to the defaults list (or to its own config) and not to the values."""
        key = override.key_or_group
        if key not in self._is_group:
            self._is_group[key] = self._repository.group_exists(key)
        is_value = isinstance(override.value(), dict) or not self._is_group[key]
        return override.is_hydra_override() or not is_value

    def _base(self, structural: Signature) -> tuple[bytes, list[str]]:
        """The config before any value is set, pickled: copying it from there is the fastest way; its interpolations."""
        if structural not in self._bases:
            config = hydra_compose([*structural, *self._extra])
            interpolations = find_interpolations(OmegaConf.to_container(config, resolve=False))
            self._bases[structural] = pickle.dumps(config, protocol=5), interpolations
        return self._bases[structural]


def find_interpolations(tree: object) -> list[str]:
    """Return all texts of an unresolved tree that may refer to other keys.

    >>> find_interpolations({"a": {"b": "${c.d}/x"}, "e": [1, "y"]})
    ['${c.d}/x']
    """
    if isinstance(tree, str):
        return [tree] if "$" in tree else []
    if isinstance(tree, dict):
        return [text for value in tree.values() for text in find_interpolations(value)]
    return [text for value in tree for text in find_interpolations(value)] if isinstance(tree, list) else []


def is_plain(override: Override, interpolations: Iterable[str]) -> bool:
    """Return True if the value can replace another value of its key in a resolved tree."""
    if override.is_delete() or override.package is not None or override.key_or_group in _DECIDES_GPUS:
        return False
    value = override.value()
    if not (value is None or isinstance(value, (bool, int, float, str))):
        return False
    # OmegaConf interprets references, escapes and the mark of missing values.
    if isinstance(value, str) and any(mark in value for mark in ("$", "\\", "???")):
        return False
    # ${.lr} and ${optim} speak of optim.lr, too.
    return not any(part in text for text in interpolations for part in override.key_or_group.split("."))


def sign(overrides: Sequence[Override], interpolations: Sequence[str]) -> tuple[Signature, PlainValues]:
    """Return the signature of these overrides, and their plain values in order."""
    lines = [override.input_line or "" for override in overrides]
    texts = [*interpolations, *(line for line in lines if "$" in line)]
    plain = [is_plain(override, texts) for override in overrides]
    words = [
        f"{override.type} {override.key_or_group}" if can_be_set else line
        for override, line, can_be_set in zip(overrides, lines, plain, strict=True)
    ]
    values = [(override.key_or_group, override.value()) for override in itertools.compress(overrides, plain)]
    return tuple(words), values


def set_values(tree: Any, values: PlainValues) -> bool:
    """Set existing dotted keys of the tree; return False if one does not exist."""
    for key, value in values:
        *path, name = key.split(".")
        section = tree
        for part in path:
            section = section.get(part) if isinstance(section, dict) else None
        if not isinstance(section, dict) or isinstance(section.get(name, {}), (dict, list)):
            return False
        section[name] = value
    return True
