"""`image build|import|check|bases`: the container image that a preset names, made and looked into."""

from __future__ import annotations

import argparse
import sys

from slurm_rl.cli.common import check_overrides
from slurm_rl.cli.words import choose, read_words
from slurm_rl.config.load import load_config
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.image.bases import raise_bases
from slurm_rl.image.make import How, Target, build_image, import_image
from slurm_rl.image.recipe import RECIPES, Recipe

ACTIONS = ("build", "import", "check", "bases")


def run(words: list[str]) -> int:
    told = read_words("image", words)
    args, rest = told.flags, told.rest[1:]
    action = choose("what `image` does", next(iter(told.rest), None), ACTIONS)
    if action == "check":
        from slurm_rl.cli.image_check import run_check

        return run_check(rest, config_dir=args.config_dir, timeout_s=args.timeout)
    if action == "bases":
        for ref, digest in raise_bases().items():
            print(f"{digest or 'unknown'}  {ref}")
        return 0
    config = load_config(check_overrides(rest), config_dir=args.config_dir, is_run=False)
    target = Target(config.container.runtime, config.container.image or "")
    how = How(args.engine, tuple(args.engine_arg), args.force)
    if action == "build":
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
