"""`image build|import|check`: the container image that a preset names, made and looked into."""

from __future__ import annotations

import argparse
import sys

from slurm_rl.cli.common import parse_overrides
from slurm_rl.config.load import load_config
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.image.make import How, Target, build_image, import_image
from slurm_rl.image.recipe import RECIPES, Recipe

ACTIONS = ("build", "import", "check")


def run(words: list[str]) -> int:
    args, rest = _parser().parse_known_args(words)
    if args.action == "check":
        from slurm_rl.cli.image_check import run_check

        return run_check(rest, timeout_s=args.timeout)
    overrides, config_dir = parse_overrides(rest)
    config = load_config(overrides, config_dir=config_dir)
    target = Target(config.container.runtime, config.container.image or "")
    how = How(args.engine, tuple(args.engine_arg), args.force)
    if args.action == "build":
        is_new = build_image(target, _recipe(config, args), how)
    else:
        if args.source is None:
            raise ConfigError("import must be told what", action="--from=<reference>, or --from=<root.tar>")
        is_new = import_image(target, args.source, how)
    print(f"image   {target.image} {'is ready' if is_new else 'is up to date'}", file=sys.stderr)
    return 0


def _recipe(config: RunConfig, args: argparse.Namespace) -> Recipe:
    pairs = dict(_split(pair) for pair in args.build_arg)
    if args.base:
        pairs["BASE"] = args.base
    return Recipe(RECIPES[config.cluster.accelerator], pairs)


def _split(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not (name and equals):
        raise ConfigError("a build argument is NAME=value", seen=pair)
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slurm_rl image",
        usage="%(prog)s build|import|check [flags] [+cluster=<preset>] [overrides]",
        description="The preset, or overrides, say which: container.runtime, container.image, cluster.accelerator.",
        allow_abbrev=False,
    )
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("--engine", help="podman, docker or buildah; the first that answers by default")
    parser.add_argument("--base", help="build: the image to start from, in place of the recipe's")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE", help="build: of the recipe")
    parser.add_argument("--engine-arg", action="append", default=[], help="build: as it is to `<engine> build`")
    parser.add_argument("--from", dest="source", help="import: a reference, or the .tar of a root file system")
    parser.add_argument("--force", action="store_true", help="make it although it is up to date")
    parser.add_argument("--timeout", type=float, default=900.0, metavar="S", help="check: for a node and an answer")
    return parser
