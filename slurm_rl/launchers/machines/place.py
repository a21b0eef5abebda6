"""Where the head listens, and what must be the same on all machines that come there."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from slurm_rl.errors import ConfigError
from slurm_rl.run_dir import RunDir, read_json, write_json

# The head alone chooses these, and tells.
_OF_THE_HEAD = ("run_dir", "cluster.num_nodes", "cluster.head_port")


@dataclass(frozen=True)
class HeadPlace:
    """Where the head listens, in machines.json."""

    port: int
    word: str
    """Random; a machine that reads it in the file sees the head's run directory."""
    hosts: tuple[str, ...] = ()
    """Names or addresses of all nodes by rank, where they are known beforehand."""


def write_place(run: RunDir, place: HeadPlace) -> None:
    write_json(run.machines, asdict(place))


def read_place(run: RunDir) -> HeadPlace:
    tree = read_json(run.machines)
    return HeadPlace(**{**tree, "hosts": tuple(tree["hosts"])})


def listen(port: int) -> socket.socket:
    """A socket that listens at the head's port.

    Raises:
        ConfigError: somebody else does.
    """
    try:
        return socket.create_server(("", port), backlog=1024)
    except OSError as error:
        raise ConfigError(
            f"cluster.head_port must be free on the head ({error.strerror})",
            seen=port,
            action="another run may have it: cluster.head_port=<another>, or --port, the same on every machine",
        ) from None


def find_difference(head: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> str | None:
    """The first key in which two configs differ, with both values; None when there is none.

    >>> find_difference({"a": {"b": 1}, "run_dir": "/x"}, {"a": {"b": 2}, "run_dir": "/y"})
    'a.b=2, on the head 1'
    """
    for key in sorted({*head, *other}):
        path = f"{prefix}{key}"
        mine, its = head.get(key), other.get(key)
        if path in _OF_THE_HEAD or mine == its:
            continue
        if isinstance(mine, Mapping) and isinstance(its, Mapping):
            if found := find_difference(mine, its, f"{path}."):
                return found
        else:
            return f"{path}={its}, on the head {mine}"
    return None
