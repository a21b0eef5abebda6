"""What the verbs share: from overrides to a plan."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from slurm_rl.cli.find import is_run_or_sweep
from slurm_rl.cli.verbs import VERBS
from slurm_rl.config.load import load_config
from slurm_rl.config.overrides import DEMO
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError, find_near
from slurm_rl.launch.runs.planning import choose_directory, plan_in
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir


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
    run = choose_directory(config)
    return config, plan_in(config, run), run
