"""`-m`: a sweep. Hydra's sweeper makes the overrides; every run is checked before the first is submitted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from slurm_rl.cli.common import check_overrides
from slurm_rl.cli.sweep_checks import check_clusters, plan_runs
from slurm_rl.cli.sweep_runs import SweepRuns
from slurm_rl.cli.words import Words
from slurm_rl.config.load import explain_hydra, open_hydra
from slurm_rl.config.overrides import normalise_words
from slurm_rl.errors import RunDirError
from slurm_rl.launchers.slurm.sweep_submit import remove_sweep
from slurm_rl.sweep.compose import Composer
from slurm_rl.sweep.ledger import Ledger, SweepDir
from slurm_rl.sweep.sweeper import Outcome, compose_sweep, run_sweeper, set_sweep_dir

DEFAULT_METRIC = "accuracy.after.sampled"


def run_sweep(told: Words) -> int:
    """`submit -m`."""
    args, overrides = told.flags, check_overrides(told.rest)
    with open_hydra(args.config_dir) as extra:
        config = compose_sweep(normalise_words(overrides), extra)
        directory = choose_directory(config, is_named=any("hydra.sweep.dir=" in word for word in overrides))
        set_sweep_dir(config, str(directory.path))
        with explain_hydra():
            ledger = Ledger(str(config.name), args.metric or DEFAULT_METRIC, args.min)
        return sweep(config, SweepRuns(directory, ledger), Composer(extra))


def choose_directory(config: DictConfig, *, is_named: bool) -> SweepDir:
    """hydra.sweep.dir, with a number behind it when the derived one is taken.

    Raises:
        RunDirError: the user named a folder with something in it.
    """
    with explain_hydra():
        base = Path(str(config.hydra.sweep.dir)).absolute()
    path, number = base, 2
    while path.exists() and (not path.is_dir() or any(path.iterdir())):
        if is_named:
            raise RunDirError("hydra.sweep.dir must be a new or empty folder", seen=str(path), action="choose another")
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return SweepDir(path)


def sweep(config: DictConfig, runs: SweepRuns, composer: Composer) -> int:
    """Sweep to the end, or until all is submitted; the exit code."""
    made = [folder for folder in runs.directory.path.parents if not folder.exists()]

    def run_batch(batch: list[list[str]], wait: bool) -> Sequence[Outcome]:
        planned = plan_runs(composer, batch, runs.directory, first_index=runs.num_runs)
        return runs.start(check_clusters(planned), wait=wait)

    try:
        run_sweeper(config, run_batch)
    finally:
        if not runs.is_started:
            remove_sweep(runs.directory, made)
    return runs.finish()
