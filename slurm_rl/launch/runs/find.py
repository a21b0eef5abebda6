"""Find the run of a path, and the user's newest submissions.

These are in `$XDG_STATE_HOME/slurm_rl/submissions.json` (~/.local/state by default), mode 0600, newest first. Nothing
depends on the file: it may be deleted, and two commands that submit at the same time may lose an entry.
"""

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_rl.config.paths import expand_user
from slurm_rl.errors import ConfigError, RunDirError, find_near
from slurm_rl.launch.controller.record import load_job
from slurm_rl.launch.runs.pipeline import PIPELINE_FILE
from slurm_rl.launch.sweep.ledger import SweepDir, load_ledger
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir, read_json, write_json

# Characters shown of a word that is too long for a path.
_SHOWN = 60
_MAX_ENTRIES = 100
DEFAULT_ROOT = Path("runs")
RUN_FILES = ("plan.json", "sweep.json", PIPELINE_FILE)
"""One of them is in the directory of every run, sweep or pipeline."""


@dataclass(frozen=True)
class Submission:
    """A run, sweep or pipeline that this user submitted."""

    path: str
    jobs: tuple[str, ...]
    """Job ids; several for the arrays of a sweep."""
    time: float
    """Seconds since the epoch."""


def open_run(path: str | os.PathLike[str]) -> RunDir:
    """Return the run with this directory, name or job id. Raises RunDirError, which suggests a similar one."""
    run = RunDir(resolve(os.fspath(path)))
    if not run.plan.is_file():
        raise _no_run(run.path, os.fspath(path))
    return run


def resolve(word: str) -> Path:
    """Return the directory of a path, a name or a job id; the path itself if it is unknown.

    Raises:
        ConfigError: this machine could not have such a path.
    """
    path = parse_path(word)
    if path.exists():
        return path
    recent = read_recent()
    roots = dict.fromkeys((DEFAULT_ROOT, *(Path(known.path).parent for known in recent)))
    if ".." not in path.parts and (named := next((root / path for root in roots if is_ours(root / path)), None)):
        return named
    return _find_job(word, recent) or path


def _find_job(word: str, recent: Sequence[Submission]) -> Path | None:
    """Return the run or sweep of a job; for `12_3` the run of that element of a sweep's array."""
    array, _, index = word.partition("_")
    for known in recent:
        if word in known.jobs and is_ours(Path(known.path)):
            return Path(known.path)
        if index and array in known.jobs and (sweep := SweepDir(known.path)).is_sweep:
            for run in load_ledger(sweep).runs:
                if (run.array_job, str(run.array_index)) == (array, index):
                    return sweep.run(run.index).path
    runs = (RunDir(plan.parent) for plan in DEFAULT_ROOT.glob("*/plan.json"))
    return next((run.path for run in runs if (job := load_job(run)) is not None and job.job_id == word), None)


def is_ours(path: Path) -> bool:
    """Return whether the directory holds a run, a sweep or a pipeline."""
    return any((path / file).is_file() for file in RUN_FILES)


def parse_path(word: str) -> Path:
    """Return `word` as a path, which need not exist. Raises ConfigError if it is invalid here."""
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
        raise ConfigError(f"a path must be accessible ({reason})", seen=shown, action="name another") from None
    return Path(word)


def load_plan(run: RunDir) -> JobPlan:
    """Load the plan of a run. Raises RunDirError: this version cannot read plan.json."""
    try:
        return JobPlan.from_json(read_json(run.plan))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RunDirError(
            f"plan.json must be readable by this version of slurm_rl ({type(error).__name__}: {error})",
            seen=str(run.plan),
            action="use the version of the run, in its folder code/",
        ) from None


def _no_run(path: Path, word: str) -> RunDirError:
    """Return the error for a path that is not a run."""
    rule = "a run directory must contain plan.json"
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


def state_file() -> Path:
    """Return the path of the file. Raises ConfigError: the user has no home directory."""
    base = os.environ.get("XDG_STATE_HOME")
    folder = Path(base) if base else expand_user("~/.local/state")
    return folder.absolute() / "slurm_rl" / "submissions.json"


def remember(path: Path, jobs: Sequence[str]) -> None:
    """Put a submission first in the file, in place of an earlier one of the same directory."""
    entry = Submission(str(path), tuple(jobs), time.time())
    entries = [entry, *(known for known in read_recent() if known.path != entry.path)]
    try:
        file = state_file()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(file, [asdict(known) for known in entries[:_MAX_ENTRIES]], mode=0o600)
    except (OSError, ConfigError):
        return  # no home directory, or it is full or read-only: the run must be named by its path


def read_recent() -> list[Submission]:
    """Return the submissions, newest first; none if the file is absent or damaged."""
    try:
        entries = [Submission(**entry) for entry in read_json(state_file())]
        return [Submission(str(known.path), tuple(map(str, known.jobs)), float(known.time)) for known in entries]
    except (OSError, RunDirError, ConfigError, TypeError, ValueError):
        return []
