"""Find the run of a path."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from slurm_rl.errors import ConfigError, RunDirError, find_near
from slurm_rl.launch.runs.recent import read_recent
from slurm_rl.launch.sweep.ledger import SweepDir
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir, read_json

# Characters shown of a word that is too long for a path.
_SHOWN = 60


def open_run(path: str | os.PathLike[str]) -> RunDir:
    """Return the run in directory `path`.

    Raises:
        ConfigError, RunDirError: `path` is not a run; the message suggests a similar one.
    """
    run = RunDir(parse_path(os.fspath(path)))
    if not run.plan.is_file():
        raise _no_run(run.path, os.fspath(path))
    return run


def parse_path(word: str) -> Path:
    """Return `word` as a path, which need not exist.

    Raises:
        ConfigError: the path is too long or invalid for this machine, or not accessible.
    """
    if not word:
        raise ConfigError("a path must not be empty", seen=repr(word), action="name a folder")
    try:
        # Look up a file of a run: the path must leave room for its name.
        os.lstat(Path(word) / "plan.json")
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        shown = word if len(word) <= _SHOWN else f"{word[:_SHOWN]}... ({len(word)} characters)"
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"a path must be one to look at ({reason})", seen=shown, action="name another") from None
    return Path(word)


def load_plan(run: RunDir) -> JobPlan:
    """Load the plan of a run.

    Raises:
        RunDirError: this version cannot read plan.json.
    """
    try:
        return JobPlan.from_json(read_json(run.plan))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RunDirError(
            f"plan.json must be one that this version of slurm_rl can read ({type(error).__name__}: {error})",
            seen=str(run.plan),
            action="use the version of the run, in its folder code/",
        ) from None


def _no_run(path: Path, word: str) -> RunDirError:
    """Return the error for a path that is not a run."""
    rule = "a run directory holds plan.json"
    if SweepDir(path).is_sweep:
        return RunDirError(rule, seen=f"the sweep {path}", action=f"name one of its runs, as in {shlex.quote(word)}/0")
    if not path.exists():
        there = [found.parent for found in path.parent.glob("*/plan.json")]
        known = {one.name: one for one in (*(Path(sent.path) for sent in read_recent()), *there)}
        near = find_near(path.name, known)
        action = f"did you mean {known[near]}?" if near else "name a directory that `python -m slurm_rl` printed"
        seen = f"{word}, which is no directory, run name or job id that is known here"
        return RunDirError(rule, seen=seen, action=action)
    below = sorted(found.parent for found in path.glob("*/plan.json")) if path.is_dir() else []
    action = (
        f"name one of its runs, as in {below[-1]}" if below else "name a directory that `python -m slurm_rl` printed"
    )
    return RunDirError(rule, seen=str(path), action=action)
