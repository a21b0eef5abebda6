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
from slurm_rl.run_dir import RunDir
from slurm_rl.run_secret import TOKEN_VARIABLE, keep_secret, read_secret, token_from_environment

_POLL_S = 0.2


def secret_file(run: RunDir) -> Path:
    return run.secrets / "machines-token"


def head_secret(run: RunDir, env: Mapping[str, str]) -> str:
    """The head's: from the environment, or made now and kept 0600 in the run directory."""
    value = token_from_environment(env)
    path = secret_file(run)
    return value or read_secret(path) or keep_secret(run, path, secrets.token_hex(32))


def worker_secret(run_dir: str | None, env: Mapping[str, str], timeout_s: float, is_stopped: Callable[[], bool]) -> str:
    """A worker's: from the environment, or the head's file once it is there.

    Args:
        run_dir: as the command line names it; None: the head chooses one.

    Raises:
        ConfigError: neither is to be had.
    """
    value = token_from_environment(env)
    if value is not None:
        return value
    deadline = time.monotonic() + timeout_s
    path = secret_file(RunDir(run_dir)) if run_dir is not None else None
    while path is not None and time.monotonic() < deadline and not is_stopped():
        if found := read_secret(path):
            return found
        time.sleep(_POLL_S)
    raise ConfigError(
        f"{TOKEN_VARIABLE} must be set to one secret on every machine of the run",
        seen="nothing" if path is None else f"nothing, and no {path}",
        action="export it on each (a secret of the pod, the task's env), or name one run_dir= that all machines share",
    )


def derive_ray_token(secret: str, job_key: str, attempt: int) -> str:
    """The Ray token of an attempt, on each machine by itself: 64 hexadecimal digits (HMAC-SHA256)."""
    return hmac.new(secret.encode(), f"ray:{job_key}:{attempt}".encode(), hashlib.sha256).hexdigest()
