"""Where the head listens."""

from __future__ import annotations

import socket
from dataclasses import asdict, dataclass

from slurm_rl.errors import ConfigError
from slurm_rl.run_dir import RunDir, read_json, write_json


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
    return socket.create_server(("", port), backlog=1024)


def check_port(port: int) -> None:
    """Before anything is started.

    Raises:
        ConfigError: somebody listens there.
    """
    try:
        listen(port).close()
    except OSError as error:
        raise port_is_taken(port, error) from None


def port_is_taken(port: int, error: OSError) -> ConfigError:
    return ConfigError(
        f"cluster.head_port must be free on the head ({error.strerror})",
        seen=port,
        action="another run may have it: cluster.head_port=<another>, or --port, the same on every machine",
    )
