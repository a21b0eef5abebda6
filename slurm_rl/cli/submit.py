"""`submit`: check, write the run directory and start the job; a run on this machine is followed to its end."""

from __future__ import annotations

import argparse
import sys

from slurm_rl.cli.announce import announce_and_follow
from slurm_rl.cli.common import check_overrides
from slurm_rl.cli.output import note
from slurm_rl.config.load import compose, conf_dir, load_config, register_schema, render_search_path, site_dirs
from slurm_rl.config.overrides import normalise_words
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.start import start_run

_SHOWING = ("cfg", "info", "package", "hydra_help")


def run(args: argparse.Namespace) -> int:
    if args.rest and args.rest[0].endswith((".yaml", ".yml")) and "=" not in args.rest[0]:
        from slurm_rl.cli.pipeline import run_pipeline

        if args.multirun or any(getattr(args, name) for name in _SHOWING):
            raise ConfigError("a pipeline file takes only --dir and --config-dir", seen=" ".join(args.rest))
        return run_pipeline(args)
    if args.dir is not None:
        raise ConfigError("--dir is for a pipeline file", seen=str(args.dir), action="set run_dir= instead")
    if any(getattr(args, name) for name in _SHOWING):
        return _run_hydra(args)
    if args.multirun:
        from slurm_rl.cli.sweep import run_sweep

        return run_sweep(args)
    return _submit(args)


def _run_hydra(args: argparse.Namespace) -> int:
    """Print with Hydra's own main, after our errors for overrides that do not compose.

    Raises:
        ConfigError: the overrides do not compose.
    """
    import hydra

    register_schema()
    if args.cfg or args.info:
        compose(check_overrides(args.rest), config_dir=args.config_dir)
    # Hydra's own --config-dir would read YAML 1.1.
    named = {name: getattr(args, name) for name in ("cfg", "info", "package")}
    flags = [f"--{name}={value}" for name, value in named.items() if value]
    flags += ["--hydra-help"] if args.hydra_help else []
    flags += ["--multirun"] if args.multirun else []
    search_path = render_search_path(site_dirs(args.config_dir))
    sys.argv = ["python -m slurm_rl", *flags, *normalise_words(args.rest), *search_path]

    @hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    def application(config: object) -> None:
        raise AssertionError("only flags that print reach Hydra's main")

    try:
        application()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2 if end.code else 0
    return 0


def _submit(args: argparse.Namespace) -> int:
    config = load_config(check_overrides(args.rest), config_dir=args.config_dir)
    return announce_and_follow(start_run(config, note))
