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


def require_own(folder: Path) -> None:
    """Refuse a folder whose owner could put his own code in the place of ours.

    Raises:
        RunDirError: it is there, and is another user's.
    """
    if folder.exists() and folder.stat().st_uid != os.geteuid():
        raise RunDirError(
            "run_dir must be a new folder or your own",
            seen=f"{folder} of {name_of_user(folder.stat().st_uid)}",
            action="name a folder in it that is not there yet",
        )
