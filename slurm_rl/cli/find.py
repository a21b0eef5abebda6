"""From a word to the run or the sweep that it names, and to the newest attempt of a run that is going."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from slurm_rl.cli.verbs import VERBS
from slurm_rl.errors import ConfigError, RunDirError
from slurm_rl.launchers.jobs import read_states
from slurm_rl.node.rendezvous import HeadRecord
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir, RunDir, read_json
from slurm_rl.runs.find import load_plan, open_run, parse_path
from slurm_rl.sweep.ledger import SweepDir

_DEFAULT_ROOT = Path("runs")


def find_run(words: Sequence[str]) -> RunDir:
    """The run named on the command line, or the newest under ./runs.

    Raises:
        ConfigError, RunDirError: the words name no run, or there is none.
    """
    if not words:
        return RunDir(_find_newest("plan.json", "run", "python -m slurm_rl"))
    return open_run(_parse_one(words, "run"))


def find_sweep(words: Sequence[str]) -> SweepDir | None:
    """The sweep, when the words name one."""
    if len(words) != 1:
        return None
    sweep = SweepDir(parse_path(words[0]))
    return sweep if sweep.is_sweep else None


def require_sweep(words: Sequence[str]) -> SweepDir:
    """The sweep named on the command line, or the newest under ./runs.

    Raises:
        ConfigError, RunDirError: the words name no sweep, or there is none.
    """
    if words:
        return SweepDir(_parse_one(words, "sweep"))
    return SweepDir(_find_newest("sweep.json", "sweep", "python -m slurm_rl -m optim.lr=1e-4,6e-4"))


def load_live(run: RunDir) -> tuple[JobPlan, AttemptDir]:
    """Plan and newest attempt of a run that is going: what `tunnel` and `attach` reach into.

    Raises:
        RunDirError: the run does not run, with its state.
    """
    plan, [state] = load_plan(run), read_states([run])
    numbers = run.attempt_numbers()
    # `unknown` is a Slurm that does not answer; the nodes may.
    if not numbers or not (state.is_alive or state.word == "unknown"):
        path = shlex.quote(str(run.path))
        raise RunDirError(
            "the run must be running",
            seen=f"{run.path} is {state}",
            action=f"python -m slurm_rl status {path}; python -m slurm_rl resume {path}",
        )
    return plan, run.attempt(numbers[-1])


def load_head(attempt: AttemptDir) -> HeadRecord:
    """Where the attempt's Ray is.

    Raises:
        RunDirError: it is not up yet.
    """
    if not attempt.head.is_file():
        raise RunDirError(
            "the run's Ray must be up", seen=f"no {attempt.head.name} in {attempt.path}", action="wait some seconds"
        )
    return HeadRecord(**read_json(attempt.head))


def is_run_or_sweep(word: str) -> bool:
    try:
        path = parse_path(word)
    except ConfigError:
        return False
    return RunDir(path).plan.is_file() or SweepDir(path).is_sweep


def _parse_one(words: Sequence[str], what: str) -> Path:
    """The path of the only word.

    Raises:
        ConfigError: there are more, or it is an override or a second verb.
    """
    path = parse_path(words[0])
    if len(words) > 1:
        raise ConfigError(f"name one {what} directory", seen=" ".join(words), action="leave out the others")
    if path.exists():
        return path
    if words[0] in VERBS:
        raise ConfigError("one verb a command", seen=f"{words[0]} behind another", action="leave out either")
    if "=" in words[0]:
        raise ConfigError(
            f"this verb takes the directory of a {what}, and no overrides",
            seen=words[0],
            action=f"name the {what}; overrides are for a new one",
        )
    return path


def _find_newest(file: str, what: str, start: str) -> Path:
    found = sorted(_DEFAULT_ROOT.glob(f"*/{file}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise RunDirError(f"name a {what} directory, or have one under ./{_DEFAULT_ROOT}", action=f"start one: {start}")
    return found[-1].parent
