"""`eval`: measure a model (a hub name, a folder or a run) on sets of rows, as a separate job."""

import argparse
from collections.abc import Callable
from pathlib import Path

import yaml

from slurm_rl.cli import convert
from slurm_rl.cli.common import check_overrides
from slurm_rl.cli.find import find_run
from slurm_rl.cli.foreground import announce_and_follow
from slurm_rl.cli.output import note
from slurm_rl.config.inherit import inherit
from slurm_rl.config.load import compose, load_config
from slurm_rl.config.parse import parse_config
from slurm_rl.config.paths import expand_user
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.find import resolve
from slurm_rl.launch.runs.start import start_run
from slurm_rl.run_dir.run_dir import RunDir

_PATH = "model.path="


def run(args: argparse.Namespace) -> int:
    step = args.step
    directory, overrides = _split(args.rest)
    if directory is None:
        if step is not None:
            action = "python -m slurm_rl eval <run> --step N, or model.path=<run directory>"
            raise ConfigError("--step needs a run", seen=str(step), action=action)
        config = load_config([*check_overrides(overrides), "eval.only=true"], config_dir=args.config_dir)
        return announce_and_follow(start_run(config, note), as_json=args.json)
    path, convert_it, name = _find_model(directory, step)
    config = _configure(directory, path, name, overrides, args.config_dir)
    return announce_and_follow(start_run(config, note, convert_it), as_json=args.json)


def _split(rest: list[str]) -> tuple[RunDir | None, list[str]]:
    """Return the run that the first word or model.path names, and the overrides."""
    if rest and "=" not in rest[0] and not rest[0].startswith("~"):
        return find_run(rest[:1]), rest[1:]
    for word in rest:
        if word.startswith(_PATH):
            run = RunDir(resolve(str(expand_user(word.removeprefix(_PATH).strip("'\"")))).absolute())
            if run.plan.is_file():
                return run, [other for other in rest if other != word]
    return None, rest


def _find_model(run: RunDir, step: int | None) -> tuple[str, Callable[[Path], object] | None, str]:
    """Find the exported model, or the checkpoint of a step.

    Returns:
        Folder of the export, None and a name; for a checkpoint the initial model of the run, which has the same shape,
        and the function that writes the checkpoint into a folder.

    Raises:
        CheckpointError: there is no whole checkpoint.
        MissingLibraryError: this machine cannot convert it.
    """
    if step is None and (run.export / "config.json").is_file():
        return str(run.export), None, "export"
    checkpoint = convert.find_checkpoint(run, step)
    source = _load(run).model.path or str(run.model)
    return source, convert.prepare(run, checkpoint), f"step-{checkpoint.step}"


def _configure(run: RunDir, path: str, name: str, overrides: list[str], config_dir: str | None) -> RunConfig:
    """Return the config of the evaluation: the run's settings that affect results, and the user's overrides."""
    source = _load(run)
    tree = compose([*overrides, "eval.only=true"], config_dir=config_dir)
    inherit(tree, source, overrides)
    tree["model"] |= {"path": path, "from_config": None}
    if not any(word.startswith("name=") for word in overrides):
        tree["name"] = f"{source.name}-{name}-eval"
    return parse_config(tree, is_run=True)


def _load(run: RunDir) -> RunConfig:
    return parse_config(yaml.safe_load(run.config.read_text(encoding="utf-8")))
