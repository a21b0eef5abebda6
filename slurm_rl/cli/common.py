"""What the verbs share: overrides to a plan, a word to a run directory."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from slurm_rl import __version__
from slurm_rl.cli.model_shape import find_shape
from slurm_rl.config.load import load_config
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError, RunDirError
from slurm_rl.plan.job import JobPlan, SubmitFacts, build_plan
from slurm_rl.run_dir import RunDir

DEFAULT_ROOT = "runs"


def parse_overrides(words: list[str]) -> tuple[list[str], str | None]:
    """Split `--config-dir` from the overrides.

    Raises:
        ConfigError: a flag that submit and plan do not know.
    """
    overrides, config_dir, rest = [], None, iter(words)
    for word in rest:
        if word == "--config-dir":
            config_dir = next(rest, None)
        elif word.startswith("--config-dir="):
            config_dir = word.partition("=")[2]
        elif word.startswith("-"):
            raise ConfigError("the flag must be one that is known", seen=word, action="see python -m slurm_rl --help")
        elif "=" not in word and not word.startswith("~"):
            raise ConfigError(
                "an argument is a verb or an override key=value", seen=word, action="see python -m slurm_rl --help"
            )
        else:
            overrides.append(word)
    return overrides, config_dir


def compose_run(words: list[str]) -> tuple[RunConfig, JobPlan, RunDir]:
    """Config, plan and (not yet existing) run directory of a command line."""
    overrides, config_dir = parse_overrides(words)
    config = load_config(overrides, config_dir=config_dir)
    run = RunDir(config.run_dir or default_run_dir(config))
    return config, plan_run(config, run), run


def plan_run(config: RunConfig, run: RunDir) -> JobPlan:
    """The plan of a run that is submitted from this process."""
    check_path(run, config.cluster.launcher)
    facts = SubmitFacts(
        python=sys.executable,
        num_cpus=len(os.sched_getaffinity(0)),
        version=__version__,
        model_shape=find_shape(config.model),
    )
    root = config.cluster.remote_root
    return build_plan(config, str(run.path if root is None else Path(root) / run.path.name), facts)


def check_path(run: RunDir, launcher: str) -> None:
    """Refuse paths that some file format or log line on the way could not hold.

    Raises:
        ConfigError: a control character; on Slurm also what it replaces in file names.
    """
    path = str(run.path)
    if not path.isprintable():
        raise ConfigError(
            "run_dir must be printable, without line breaks and control characters",
            seen=ascii(path),
            action="choose another run_dir",
        )
    if launcher == "slurm" and set(path) & set("%\\"):
        raise ConfigError(
            "run_dir must hold no % and no backslash, which Slurm replaces in the names of log files",
            seen=path,
            action="choose another run_dir or cluster.run_root",
        )


def default_run_dir(config: RunConfig) -> Path:
    """<run_root>/<name>-<time>, with a number behind it when that is taken."""
    base = Path(config.cluster.run_root) / f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = base, 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path


def find_run(words: list[str]) -> RunDir:
    """The run named on the command line, or the newest under ./runs.

    Raises:
        RunDirError: there is no such run.
    """
    if len(words) > 1:
        raise ConfigError("name one run directory", seen=" ".join(words))
    if words:
        return RunDir(words[0]).require()
    runs = sorted(Path(DEFAULT_ROOT).glob("*/plan.json"), key=lambda path: path.stat().st_mtime)
    if not runs:
        raise RunDirError(
            f"name a run directory, or have one under ./{DEFAULT_ROOT}", action="start one: python -m slurm_rl"
        )
    return RunDir(runs[-1].parent)
