"""From a word to the run or the sweep that it names, and to the newest attempt of a run that is going."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from slurm_rl.cli.verbs import VERBS
from slurm_rl.cli.words import find_near
from slurm_rl.errors import ConfigError, RunDirError
from slurm_rl.launchers.jobs import read_states
from slurm_rl.node.rendezvous import HeadRecord
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir, RunDir, read_json
from slurm_rl.sweep.ledger import SweepDir

_DEFAULT_ROOT = Path("runs")
# Of a word that is too long for a path.
_SHOWN = 60


def find_run(words: Sequence[str]) -> RunDir:
    """The run named on the command line, or the newest under ./runs.

    Raises:
        ConfigError, RunDirError: the words name no run, or there is none.
    """
    if not words:
        return RunDir(_find_newest("plan.json", "run", "python -m slurm_rl"))
    run = RunDir(_parse_one(words, "run"))
    if not run.plan.is_file():
        raise _no_run(words[0], run.path)
    return run


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


def load_plan(run: RunDir) -> JobPlan:
    """The plan of a run.

    Raises:
        RunDirError: plan.json is none that this version wrote.
    """
    try:
        return JobPlan.from_json(read_json(run.plan))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RunDirError(
            f"plan.json must be one that this version of slurm_rl can read ({type(error).__name__}: {error})",
            seen=str(run.plan),
            action="use the version of the run, in its folder code/",
        ) from None


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


def parse_path(word: str) -> Path:
    """The path that a word names, whether or not something is there.

    Raises:
        ConfigError: this machine could not have it, or does not let us look.
    """
    if not word:
        raise ConfigError("a path must not be empty", seen=repr(word), action="name a folder")
    try:
        # Of a file that a run or a sweep would have: what is too long for that is too long.
        os.lstat(Path(word) / "plan.json")
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        shown = word if len(word) <= _SHOWN else f"{word[:_SHOWN]}... ({len(word)} characters)"
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"a path must be one to look at ({reason})", seen=shown, action="name another") from None
    return Path(word)


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


def _no_run(word: str, path: Path) -> RunDirError:
    """What to say of a path that is no run."""
    rule = "a run directory holds plan.json"
    if SweepDir(path).is_sweep:
        return RunDirError(rule, seen=f"the sweep {path}", action=f"name one of its runs, as in {shlex.quote(word)}/0")
    if not path.exists():
        there = [found.parent.name for found in path.parent.glob("*/plan.json")]
        near = find_near(path.name, there)
        action = f"did you mean {path.parent / near}?" if near else "name a directory that `python -m slurm_rl` printed"
        return RunDirError(rule, seen=f"{path}, which is not there", action=action)
    below = sorted(found.parent for found in path.glob("*/plan.json")) if path.is_dir() else []
    action = (
        f"name one of its runs, as in {below[-1]}" if below else "name a directory that `python -m slurm_rl` printed"
    )
    return RunDirError(rule, seen=str(path), action=action)
