"""Hydra's side of a sweep: its sweepers make the overrides, and our plugin in `hydra_plugins` hands them on.

The configs of its runs are exactly Hydra's, at a fiftieth of its time. Hydra composes in two steps: a defaults list
from the choices of groups, then values set on the result, one override after the other. The runs of a sweep share most
of the first step, which is the slow one. So it is done once for each choice of groups, and the second by Hydra's own
function on a copy; where plain values alone differ, that is done once, too (composed.py).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from slurm_rl.config.compose_errors import explain_hydra
from slurm_rl.config.load import resolve_tree
from slurm_rl.errors import ConfigError, SlurmRLError
from slurm_rl.launch.sweep.composed import Signature, find_interpolations, set_values, sign
from slurm_rl.run_dir.io_errors import annotate_path

Outcome = float | SlurmRLError | None
"""The value of a run, or why it has none; None where nobody waits for it."""
BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
RunBatch = Callable[[list[list[str]], bool], Sequence[Outcome]]
"""Runs a batch of overrides; waits for the outcomes when the second argument is true."""


def compose_sweep(overrides: Sequence[str], extra: Sequence[str]) -> DictConfig:
    """The config of the sweep itself, Hydra's part included; swept keys have their defaults in it.

    Raises:
        ConfigError: it does not compose.
    """
    for key in ("hydra/launcher", "hydra.launcher", "hydra.sweep.subdir"):
        if named := [word for word in overrides if word.lstrip("+~").startswith(key)]:
            raise ConfigError(
                f"{key} is slurm_rl's own in a sweep", seen=named[0], action="leave it out; where runs go is +cluster"
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
    checked before anything is submitted, and nobody waits. Any other sweeper gets the outcomes of each batch.
    """
    hydra = GlobalHydra.instance().hydra
    assert hydra is not None
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.sweep.dir = str(folder)
    # By name: the scan for plugins imports their classes again, so isinstance would be wrong.
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
        # We check every config, and more of it; Hydra's check alone takes minutes for a thousand.
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
        """The tree that `slurm_rl.config.load.compose` makes of these overrides.

        Raises:
            ConfigError: as that one does.
        """
        with explain_hydra():
            parsed = [self._parse(text) for text in overrides]
            self._loader.validate_sweep_overrides_legal(parsed, run_mode=RunMode.RUN, from_shell=False)
            structural = tuple(item.input_line for item in parsed if self._is_structural(item))
            values = [item for item in parsed if not self._is_structural(item)]
            base, interpolations = self._base(structural)
            signature, plain = sign(values, interpolations)
            if (known := self._trees.get((structural, signature))) is not None:
                tree: dict[str, Any] = pickle.loads(known)
                if set_values(tree, plain):
                    return tree
            config = pickle.loads(base)
            ConfigLoaderImpl._apply_overrides_to_config(values, config)
            tree = resolve_tree(config)
            self._trees[structural, signature] = pickle.dumps(tree, protocol=5)
            return tree

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
            config = hydra_compose("config", overrides=[*structural, *self._extra])
            interpolations = find_interpolations(OmegaConf.to_container(config, resolve=False))
            self._bases[structural] = pickle.dumps(config, protocol=5), interpolations
        return self._bases[structural]
