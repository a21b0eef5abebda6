"""Paths as the user writes them."""

from __future__ import annotations

from pathlib import Path

from slurm_rl.errors import ConfigError


def expand_user(path: str | Path) -> Path:
    """The path with `~` and `~name` as a shell reads them.

    Raises:
        ConfigError: this machine has no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = Path(path).parts[0]
        raise ConfigError("~name must be a user of this machine", seen=user, action="write the path out") from None
