"""Address of the head, and the config and secret that all machines must share.

The secret comes from SLURM_RL_TOKEN, the same on every machine; or, if all see one named run directory, from a 0600
file there that the head creates. It is never sent, and never in an argument, a log, or the environment of an agent.
"""

import hashlib
import hmac
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurm_rl.errors import ConfigError
from slurm_rl.run_dir.run_dir import RunDir, read_json, write_json
from slurm_rl.run_dir.run_secret import TOKEN_VARIABLE, keep_secret, read_secret, token_from_environment

# The head chooses these, and sends them.
_OF_THE_HEAD = ("run_dir", "cluster.num_nodes", "cluster.head_port")
_POLL_S = 0.2


@dataclass(frozen=True)
class HeadPlace:
    """Address of the head, in machines.json."""

    port: int
    word: str
    """Random; a machine that reads it in the file sees the head's run directory."""
    hosts: tuple[str, ...] = ()
    """Names or addresses of all nodes by rank, if known in advance."""


def write_place(run: RunDir, place: HeadPlace) -> None:
    write_json(run.machines, asdict(place))


def read_place(run: RunDir) -> HeadPlace:
    tree = read_json(run.machines)
    return HeadPlace(**{**tree, "hosts": tuple(tree["hosts"])})


def listen(port: int) -> socket.socket:
    """Return a socket that listens at the head's port. Raises ConfigError if the port is taken."""
    try:
        return socket.create_server(("", port), backlog=1024)
    except OSError as error:
        raise ConfigError(
            f"cluster.head_port must be free on the head ({error.strerror})",
            seen=port,
            action="another run may use it: cluster.head_port=<another>, or --port, the same on every machine",
        ) from None


def find_difference(head: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> str | None:
    """Return the first key in which two configs differ, with both values.

    >>> find_difference({"a": {"b": 1}, "run_dir": "/x"}, {"a": {"b": 2}, "run_dir": "/y"})
    'a.b=2, on the head 1'
    """
    for key in sorted({*head, *other}):
        path = f"{prefix}{key}"
        mine, its = head.get(key), other.get(key)
        if path in _OF_THE_HEAD or mine == its:
            continue
        if not (isinstance(mine, Mapping) and isinstance(its, Mapping)):
            return f"{path}={its}, on the head {mine}"
        if found := find_difference(mine, its, f"{path}."):
            return found
    return None


def secret_file(run: RunDir) -> Path:
    return run.secrets / "machines-token"


def head_secret(run: RunDir, env: Mapping[str, str]) -> str:
    """Return the secret from the environment or the run directory; create it there if it is missing."""
    value = token_from_environment(env)
    path = secret_file(run)
    return value or read_secret(path) or keep_secret(run, path, secrets.token_hex(32))


def worker_secret(run_dir: str | None, env: Mapping[str, str], timeout_s: float, is_stopped: Callable[[], bool]) -> str:
    """Return the secret from the environment, or wait for the head's file.

    Args:
        run_dir: the run directory of the command line; None if the head chooses it.

    Raises:
        ConfigError: neither exists.
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
        f"{TOKEN_VARIABLE} must be set to the same secret on every machine of the run",
        seen="nothing" if path is None else f"nothing, and no {path}",
        action="export it on each (a secret of the pod, the task's env), or name one run_dir= that all machines share",
    )


def derive_ray_token(secret: str, job_key: str, attempt: int) -> str:
    """Return the Ray token of an attempt, the same on each machine: 64 hexadecimal digits (HMAC-SHA256)."""
    return hmac.new(secret.encode(), f"ray:{job_key}:{attempt}".encode(), hashlib.sha256).hexdigest()
