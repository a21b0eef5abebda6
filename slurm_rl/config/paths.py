"""Paths and URLs in user input."""

import re
from pathlib import Path

from slurm_rl.errors import ConfigError


def expand_user(path: str | Path) -> Path:
    """Expand `~` and `~name` as a shell does.

    Raises:
        ConfigError: the user does not exist on this machine.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = Path(path).parts[0]
        raise ConfigError("~name must be a user of this machine", seen=user, action="write the path out") from None


def is_url(text: str) -> bool:
    """Return whether it is a URL rather than a path or hub name.

    >>> is_url("gs://bucket/runs"), is_url("/shared/runs"), is_url("Qwen/Qwen3-4B")
    (True, False, False)
    """
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


_STORES = "gs://bucket/folder, s3://bucket/folder or file:///folder"


def check_url(field: str, text: str, example: str = _STORES) -> None:
    """Raise ValueError, naming the field and an example, if it is not a URL or contains a password."""
    if not is_url(text) or not text.isprintable():
        raise ValueError(f"{field} must be a URL with its protocol; got {text!r}. Next: {example}")
    place = text.partition("://")[2]
    if not place.strip("/") and not text.startswith("memory://"):
        raise ValueError(f"{field} must name a bucket or a folder; got {text!r}")
    if "@" in place.partition("/")[0] or "?" in text or "#" in text:
        raise ValueError(
            f"{field} must not contain a user, password, ? or #, since it is written to config.yaml; got one. "
            "Next: give credentials in the environment or the library's own file"
        )
