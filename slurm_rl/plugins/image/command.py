"""`image build|import`: build or convert the container image of a preset."""

import argparse
import sys

from slurm_rl.cli.common import check_overrides
from slurm_rl.cli.parser import choose
from slurm_rl.config.load import load_config
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.plugins.image.make import Target, build_image, import_image
from slurm_rl.plugins.image.recipe import OTHERS, RECIPES, Recipe

ACTIONS = ("build", "import")


def run(args: argparse.Namespace) -> int:
    action = choose("what `image` does", next(iter(args.rest), None), ACTIONS)
    config = load_config(check_overrides(args.rest[1:]), config_dir=args.config_dir, is_run=False)
    target = Target(config.container.runtime, config.container.image or "")
    if action == "build":
        is_new = build_image(target, _recipe(config, args), args.engine, args.engine_arg, force=args.force)
    else:
        if args.source is None:
            raise ConfigError("import needs a source", action="--from=<reference>, or --from=<root.tar>")
        is_new = import_image(target, args.source, args.engine, force=args.force)
    print(f"image   {target.image} {'is ready' if is_new else 'is up to date'}", file=sys.stderr)
    return 0


def _recipe(config: RunConfig, args: argparse.Namespace) -> Recipe:
    pairs = dict(_split(pair) for pair in args.build_arg)
    if args.base:
        pairs["BASE"] = args.base
    name = config.task if config.task in OTHERS else RECIPES[config.cluster.accelerator]
    return Recipe(name, pairs)


def _split(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not (name and equals):
        raise ConfigError("a build argument is NAME=value", seen=pair)
    return name, value
