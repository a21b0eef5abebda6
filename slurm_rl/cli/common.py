"""Functions that verbs share: overrides to a plan, and a command on a node."""

import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from slurm_rl.cli.parser import load_verbs
from slurm_rl.config.load import load_config
from slurm_rl.config.overrides import DEMO
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError, find_near
from slurm_rl.launch.runs.find import is_ours, parse_path
from slurm_rl.launch.runs.start import choose_directory, plan_in
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.meter import measure
from slurm_rl.run_dir.run_dir import RunDir

TIMED_OUT = 124
"""Exit status of timeout(1)."""
_GRACE_S = 10.0


def check_overrides(words: Sequence[str]) -> list[str]:
    """Return the overrides; without any, the demo's.

    Raises:
        ConfigError: a word is not an override; suggests a verb.
    """
    for word in words:
        if "=" not in word and not word.startswith("~"):
            raise ConfigError("an argument is a verb or an override key=value", seen=repr(word), action=_guess(word))
    return list(words) or list(DEMO)


def _guess(word: str) -> str:
    """Return the next action for a word that is no override."""
    verbs = load_verbs().by_name
    if word in verbs:
        return f"only one verb per command, and it comes first: python -m slurm_rl {word} ..."
    if near := find_near(word, verbs):
        return f"did you mean {near}? Or see python -m slurm_rl --help"
    try:
        is_run = bool(word) and is_ours(parse_path(word))
    except ConfigError:
        is_run = False
    return f"add a verb: python -m slurm_rl status {shlex.quote(word)}" if is_run else "see python -m slurm_rl --help"


def compose_run(
    words: Sequence[str], config_dir: str | None, *, is_run: bool = True
) -> tuple[RunConfig, JobPlan, RunDir]:
    """Return config, plan and (not yet existing) run directory of a command line."""
    config = load_config(check_overrides(words), config_dir=config_dir, is_run=is_run)
    run = choose_directory(config)
    return config, plan_in(config, run), run


def ask_node(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command with a timeout; the exit status is TIMED_OUT after it.

    Raises:
        ConfigError: there is no such program.
    """
    if shutil.which(argv[0], path=env.get("PATH")) is None:
        raise ConfigError(
            f"{argv[0]} must be on PATH",
            seen="it is not",
            action="load its module, or choose another container.runtime",
        )
    # SIGTERM first: srun ends its tasks at SIGTERM, and leaves them at SIGKILL.
    bounded = ["timeout", f"--kill-after={_GRACE_S:g}", f"{timeout_s:g}", *argv]
    with measure("waiting for an answer"):
        return subprocess.run(bounded, env=dict(env), capture_output=True, text=True, errors="replace")
