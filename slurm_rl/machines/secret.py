"""The secret that the machines of one run share, and what derives from it. Standard library alone.

It comes from SLURM_RL_TOKEN, the same on every machine; or, where all see one run directory that was named, from
a file there that the head makes and its user alone may read. It never travels, is never an argument, in a log,
or in the environment of what an agent starts.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from slurm_rl.errors import ConfigError
from slurm_rl.run_dir import RunDir, write_text

TOKEN_VARIABLE = "SLURM_RL_TOKEN"
_LEAST_LENGTH = 16
_POLL_S = 0.2


def secret_file(run: RunDir) -> Path:
    return run.secrets / "machines-token"


def secret_from_environment(env: Mapping[str, str]) -> str | None:
    """None where the variable is not set.

    Raises:
        ConfigError: it is too short to be a secret.
    """
    value = env.get(TOKEN_VARIABLE, "").strip()
    if value and len(value) < _LEAST_LENGTH:
        raise ConfigError(
            f"{TOKEN_VARIABLE} must have at least {_LEAST_LENGTH} characters",
            seen=f"{len(value)} characters",
            action="make one: python -c 'import secrets; print(secrets.token_hex(32))'",
        )
    return value or None


def head_secret(run: RunDir, env: Mapping[str, str]) -> str:
    """The head's: from the environment, or made now and kept 0600 in the run directory."""
    value = secret_from_environment(env)
    path = secret_file(run)
    if value is None and path.is_file():
        return path.read_text(encoding="ascii").strip()
    if value is None:
        value = secrets.token_hex(32)
        run.secrets.mkdir(mode=0o700, parents=True, exist_ok=True)
        run.secrets.chmod(0o700)
        write_text(path, value, mode=0o600)
    return value


def worker_secret(run_dir: str | None, env: Mapping[str, str], timeout_s: float, is_stopped: Callable[[], bool]) -> str:
    """A worker's: from the environment, or the head's file once it is there.

    Args:
        run_dir: as the command line names it; None: the head chooses one.

    Raises:
        ConfigError: neither is to be had.
    """
    value = secret_from_environment(env)
    if value is not None:
        return value
    deadline = time.monotonic() + timeout_s
    path = secret_file(RunDir(run_dir)) if run_dir is not None else None
    while path is not None and time.monotonic() < deadline and not is_stopped():
        if path.is_file():
            return path.read_text(encoding="ascii").strip()
        time.sleep(_POLL_S)
    raise ConfigError(
        f"{TOKEN_VARIABLE} must be set to one secret on every machine of the run",
        seen="nothing" if path is None else f"nothing, and no {path}",
        action="export it on each (a secret of the pod, the task's env), or name one run_dir= that all machines share",
    )


def derive_ray_token(secret: str, job_key: str, attempt: int) -> str:
    """The Ray token of an attempt, on each machine by itself: 64 hexadecimal digits (HMAC-SHA256)."""
    return hmac.new(secret.encode(), f"ray:{job_key}:{attempt}".encode(), hashlib.sha256).hexdigest()
