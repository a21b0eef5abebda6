"""`submit`: check, write the run directory and start the job; a run on this machine is followed to its end."""

import argparse

import yaml

from slurm_rl.cli.common import check_overrides
from slurm_rl.cli.foreground import announce_and_follow
from slurm_rl.cli.output import note
from slurm_rl.config.load import compose, load_config
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.start import start_run


def run(args: argparse.Namespace) -> int:
    if args.rest and args.rest[0].endswith((".yaml", ".yml")) and "=" not in args.rest[0]:
        from slurm_rl.cli.pipeline import run_pipeline

        if args.multirun or args.cfg:
            raise ConfigError("a pipeline file takes only --dir and --config-dir", seen=" ".join(args.rest))
        return run_pipeline(args)
    if args.dir is not None:
        raise ConfigError("--dir is for a pipeline file", seen=str(args.dir), action="set run_dir= instead")
    if args.cfg:
        return _print_config(args)
    if args.multirun:
        from slurm_rl.cli.sweep import run_sweep

        return run_sweep(args)
    return _submit(args)


def _print_config(args: argparse.Namespace) -> int:
    """Print the composed config, or the section of --package, as YAML."""
    tree = compose(check_overrides(args.rest), config_dir=args.config_dir)
    for part in filter(None, (args.package or "").split(".")):
        if not isinstance(tree.get(part), dict):
            raise ConfigError("--package must name a section of the config", seen=args.package)
        tree = tree[part]
    print(yaml.safe_dump(tree, sort_keys=False), end="")
    return 0


def _submit(args: argparse.Namespace) -> int:
    config = load_config(check_overrides(args.rest), config_dir=args.config_dir)
    return announce_and_follow(start_run(config, note))
