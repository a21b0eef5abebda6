"""`image build|import|check`: build, convert or check the container image of a preset."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_rl.cli.common import TIMED_OUT, ask_node, check_overrides, compose_run
from slurm_rl.cli.parser import choose
from slurm_rl.config.load import load_config
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import BringUpError, ConfigError
from slurm_rl.launch.controller.agents import agent_environment, choose_telling, explain_image
from slurm_rl.launch.controller.create import snapshot_code
from slurm_rl.launch.jobs import open_launcher
from slurm_rl.node.image_report import parse_report
from slurm_rl.plan.compat import check_versions, render_versions
from slurm_rl.plan.image_file import check_image_file, image_path
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.step import wrap_report
from slurm_rl.plugins.image.make import How, Target, build_image, import_image
from slurm_rl.plugins.image.recipe import OTHERS, RECIPES, Recipe

ACTIONS = ("build", "import", "check")


def run(args: argparse.Namespace) -> int:
    rest = args.rest[1:]
    action = choose("what `image` does", next(iter(args.rest), None), ACTIONS)
    if action == "check":
        return run_check(rest, config_dir=args.config_dir, timeout_s=args.timeout)
    config = load_config(check_overrides(rest), config_dir=args.config_dir, is_run=False)
    target = Target(config.container.runtime, config.container.image or "")
    how = How(args.engine, tuple(args.engine_arg), args.force)
    if action == "build":
        is_new = build_image(target, _recipe(config, args), how)
    else:
        if args.source is None:
            raise ConfigError("import needs a source", action="--from=<reference>, or --from=<root.tar>")
        is_new = import_image(target, args.source, how)
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


def run_check(words: list[str], *, config_dir: str | None, timeout_s: float) -> int:
    """Check the image on one node (this machine, for the local launcher) and print its versions.

    Raises:
        ConfigError: something is not as expected; each with its remedy.
    """
    _, plan, directory = compose_run(words, config_dir, is_run=False)
    # Where the run directory would be: a folder that nodes see, when runs are to work.
    root = directory.path.parent
    root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".image-check-", dir=root))
    try:
        snapshot_code(folder / "code")
        report = _ask(plan, folder, timeout_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"image   {plan.container['image'] or 'no container'} on {report['host']}: as expected")
    print(render_versions(report["versions"], plan.expected))
    return 0


def _ask(plan: JobPlan, folder: Path, timeout_s: float) -> dict[str, Any]:
    wrapped = wrap_report(plan, str(folder), f"srl-check-{secrets.token_hex(4)}", (os.getuid(), os.getgid()))
    argv = open_launcher(plan.launcher).build_probe(plan, wrapped, timeout_s)
    print("image   waiting for a node", file=sys.stderr, flush=True)
    return check_image(plan, argv, agent_environment(plan, os.environ, wrapped), timeout_s=timeout_s)


def check_image(plan: JobPlan, argv: Sequence[str], env: Mapping[str, str], *, timeout_s: float) -> dict[str, Any]:
    """Start the container on a node as the agent would, and compare its versions with the plan.

    Args:
        argv: starts `wrap_report` on a node.
        timeout_s: for all of it; a first start may fetch the image from a registry.

    Returns:
        The report, when all is as expected.

    Raises:
        ConfigError: the image does not start, or is not as the plan expects.
        BringUpError: no answer in time.
    """
    path = image_path(plan.container["runtime"], plan.container["image"])
    if path is not None:
        check_image_file(path)
    output, errors = _start(argv, env, timeout_s)
    report = parse_report(output)
    if report is None:
        words = "\n".join(choose_telling(f"{errors}\n{output}".splitlines())[-6:])
        raise ConfigError(explain_image(plan, words))
    check_versions(plan, report["versions"])
    return report


def _start(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> tuple[str, str]:
    done = ask_node(argv, env, timeout_s)
    if done.returncode == TIMED_OUT:
        words = done.stderr.strip()[-500:] or "no word"
        raise BringUpError("the image must start in time", seen=f"no answer within {timeout_s:g} s: {words}")
    return done.stdout, done.stderr
