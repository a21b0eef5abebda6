"""Hydra's side of a sweep: its sweepers make the overrides, and our plugin in `hydra_plugins` hands them on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from slurm_rl.config.load import explain_hydra
from slurm_rl.disk import naming
from slurm_rl.errors import ConfigError, SlurmRLError

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


def set_sweep_dir(config: DictConfig, path: str) -> None:
    """Where sweepers write files of their own."""
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.sweep.dir = path


def run_sweeper(config: DictConfig, run_batch: RunBatch) -> None:
    """Let the sweeper of `config` sweep.

    Hydra's basic sweeper needs no values: its batches are run as one after it is done, so that all configs are
    checked before anything is submitted, and nobody waits. Any other sweeper gets the outcomes of each batch.
    """
    hydra = GlobalHydra.instance().hydra
    assert hydra is not None
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
        with naming(Path(str(config.hydra.sweep.dir))):  # Hydra writes a file of its own there
            sweeper.sweep(arguments=OmegaConf.to_container(config.hydra.overrides.task, resolve=False))
        if collected:
            run_batch(collected, False)
        callbacks.on_multirun_end(config=config, config_name="config")
