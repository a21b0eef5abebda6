"""How the nodes of an attempt find each other: the head publishes its address. Standard library only."""

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from slurm_rl.errors import BringUpError
from slurm_rl.node.attempt import interval_s
from slurm_rl.run_dir.run_dir import AttemptDir, read_json, write_json

POLL_S = 0.05
_SAME_CAUSE_S = 1.5
"""Time between the ends of two processes with the same cause."""


@dataclass(frozen=True)
class HeadRecord:
    """Address of the head's Ray, once it is up, or of torchrun's store; attempts/<n>/head.json."""

    host: str
    ip: str
    port: int
    pid: int
    versions: Mapping[str, str | None] | None = None
    """Versions in its image; None without one."""
    checkpoint: tuple[str, int] | None = None
    """Name and step of the checkpoint that all ranks of an external trainer resume from."""

    @property
    def address(self) -> str:
        return f"{self.ip}:{self.port}"


def publish_head(attempt: AttemptDir, head: HeadRecord) -> None:
    write_json(attempt.head, asdict(head))


def wait_for_head(
    attempt: AttemptDir, deadline: float, should_stop: Callable[[], bool], num_nodes: int = 1
) -> HeadRecord:
    """Wait for the head's record until `deadline` (time.monotonic()) or `should_stop`; then BringUpError."""
    ask_at = 0.0
    while True:
        # Listing the folder: NFS caches that a file is missing.
        if time.monotonic() >= ask_at:
            ask_at = time.monotonic() + interval_s(POLL_S, num_nodes)
            if attempt.head.name in {entry.name for entry in attempt.path.iterdir()}:
                return HeadRecord(**read_json(attempt.head))
        _sleep_or_fail(deadline, should_stop, f"the head node must publish {attempt.head}")


def wait_for_port(host: str, port: int, deadline: float, should_stop: Callable[[], bool], *, what: str) -> None:
    """Wait until `host:port` accepts a connection."""
    while True:
        try:
            with socket.create_connection((host, port), timeout=2.0):
                return
        except OSError as error:
            _sleep_or_fail(deadline, should_stop, f"{what} must listen at {host}:{port} ({error})")


def is_port_open(host: str, port: int) -> bool:
    """Return whether `host:port` accepts a connection now."""
    try:
        with socket.create_connection((host, port), timeout=2.0):
            return True
    except OSError:
        return False


def comes_true(condition: Callable[[], bool], within_s: float = _SAME_CAUSE_S) -> bool:
    """Poll the condition and return whether it became true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _sleep_or_fail(deadline: float, should_stop: Callable[[], bool], rule: str) -> None:
    if should_stop():
        raise BringUpError(f"{rule} before the attempt is stopped")
    if time.monotonic() > deadline:
        raise BringUpError(
            f"{rule} before the deadline job.start_timeout_s",
            action="look at the head node's log in the attempt's logs folder",
        )
    time.sleep(POLL_S)


def own_address(peer: str) -> str:
    """Return the IP by which `peer`, a host name or address, reaches this host.

    A UDP connect sends nothing, but selects the interface by the routing table. `hostname --ip-address` may answer
    127.0.1.1 or several addresses.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((socket.gethostbyname(peer), 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise BringUpError(f"the name of another node must resolve ({error})", seen=peer) from error
