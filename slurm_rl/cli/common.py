"""What the verbs share: from overrides to a plan."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_rl import __version__
from slurm_rl.cli.find import is_run_or_sweep, parse_path
from slurm_rl.cli.model_shape import find_shape
from slurm_rl.cli.verbs import VERBS
from slurm_rl.cli.words import find_near
from slurm_rl.config.load import load_config
from slurm_rl.config.overrides import DEMO
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.plan.job import JobPlan, SubmitFacts, build_plan
from slurm_rl.run_dir import RunDir


def check_overrides(words: Sequence[str]) -> list[str]:
    """The words, when each is an override; without any, they are the demo's.

    Raises:
        ConfigError: one is none; whether it is nearly a verb, or a run for which the verb is missing.
    """
    for word in words:
        if "=" not in word and not word.startswith("~"):
            raise ConfigError("an argument is a verb or an override key=value", seen=repr(word), action=_guess(word))
    return list(words) or list(DEMO)


def _guess(word: str) -> str:
    """What the user may have meant by a word that is no override."""
    if word in VERBS:
        return f"one verb a command, and it comes first: python -m slurm_rl {word} ..."
    if near := find_near(word, VERBS):
        return f"did you mean {near}? Or see python -m slurm_rl --help"
    if is_run_or_sweep(word):
        return f"say what to do with it: python -m slurm_rl status {shlex.quote(word)}"
    return "see python -m slurm_rl --help"


def compose_run(
    words: Sequence[str], config_dir: str | None, *, is_run: bool = True
) -> tuple[RunConfig, JobPlan, RunDir]:
    """Config, plan and (not yet existing) run directory of a command line."""
    config = load_config(check_overrides(words), config_dir=config_dir, is_run=is_run)
    run = RunDir(config.run_dir or default_run_dir(config))
    return config, plan_run(config, run), run


def plan_run(config: RunConfig, run: RunDir) -> JobPlan:
    """The plan of a run that is submitted from this process.

    Raises:
        ConfigError: a run directory with a control character, or a layout that is impossible.
    """
    path = str(run.path)
    parse_path(path)
    # No file format or log line on the way could hold it.
    if not path.isprintable():
        raise ConfigError(
            "run_dir must be printable, without line breaks and control characters",
            seen=ascii(path),
            action="choose another run_dir",
        )
    facts = SubmitFacts(
        python=sys.executable,
        num_cpus=len(os.sched_getaffinity(0)),
        version=__version__,
        model_shape=find_shape(config.model),
    )
    root = config.cluster.remote_root
    return build_plan(config, path if root is None else str(Path(root) / run.path.name), facts)


def import_heavy(name: str, rule: str) -> Any:
    """A module of a room that needs torch.

    Raises:
        ConfigError: its packages are not installed here.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(rule, seen=str(error), action="pip install slurm_rl[cpu], or run it in the image") from None


def default_run_dir(config: RunConfig) -> Path:
    """<run_root>/<name>-<time>, with a number behind it when that is taken."""
    base = Path(config.cluster.run_root) / f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = parse_path(str(base)), 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path
