"""Is a folder free for a run, and this user's own? Light: `plan` asks, too."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from slurm_rl.errors import RunDirError
from slurm_rl.node.private_folder import name_of_user
from slurm_rl.run_dir import RunDir


def check_is_free(run: RunDir, *, again: bool = False) -> None:
    """Refuse a directory with anything in it.

    Args:
        again: without a plan it may be half a run of our own.
    """
    if run.plan.exists():
        raise RunDirError(
            "run_dir must not hold another run",
            seen=str(run.path),
            action=f"go on with it: python -m slurm_rl resume {shlex.quote(str(run.path))}, or choose another run_dir",
        )
    # Someone's `code` or `config.yaml` would be lost in a folder that is not ours.
    if not again and run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
        raise RunDirError("run_dir must be a new or empty folder", seen=str(run.path), action="choose another run_dir")
    require_own(run.path)


def require_own(path: Path) -> None:
    """Refuse what another user made: he could put his code in the place of ours, and what it says is his word.

    Raises:
        RunDirError: it is there, and is another user's; of a link the link itself counts.
    """
    try:
        owner = path.lstat().st_uid
    except (FileNotFoundError, NotADirectoryError):
        return
    if owner != os.geteuid():
        raise RunDirError(
            "a run directory must be your own",
            seen=f"{path} of {name_of_user(owner)}",
            action="have that user do it, or choose a run_dir that is not there yet",
        )


def require_own_run(run: RunDir) -> RunDir:
    """The run, when what its directory says is this user's word; for a verb that runs what it says.

    Raises:
        RunDirError: it is another user's.
    """
    for path in (run.path.resolve(), run.plan, run.job):
        require_own(path)
    return run
