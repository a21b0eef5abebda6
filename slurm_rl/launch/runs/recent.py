"""The user's newest submissions, so that commands find a run wherever it lies.

They are in `$XDG_STATE_HOME/slurm_rl/submissions.json` (~/.local/state by default), mode 0600, newest first. Nothing
depends on the file: it may be deleted, and two commands that submit at the same time may lose an entry.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_rl.config.paths import expand_user
from slurm_rl.errors import ConfigError, RunDirError
from slurm_rl.run_dir.run_dir import read_json, write_json

_MAX_ENTRIES = 100


@dataclass(frozen=True)
class Submission:
    """A run, sweep or pipeline that this user submitted."""

    path: str
    jobs: tuple[str, ...]
    """Job ids; several for the arrays of a sweep."""
    time: float
    """Seconds since the epoch."""


def state_file() -> Path:
    """Return the path of the file.

    Raises:
        ConfigError: the user has no home directory.
    """
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
