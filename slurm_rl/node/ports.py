"""The ports of one attempt on one node: derived from the job, proven by binding, kept by a guard.

Every port lies between 10200 and 32767. Below are the ports that daemons use; above starts the range
from which Linux hands out ports to outgoing connections, where a port that was free a moment ago can
be taken by any program's `connect` before Ray binds it.

That range is cut into 43 blocks of 524 ports. A job's block follows from its id, so jobs with
neighbouring ids (the ones most likely to share a node) never try the same block first; where two jobs
do, the guard port of the block decides: who binds it first has the block, the other goes on to the
next candidate.

    >>> plan = derive_port_block("812345", attempt=0, candidate=0)
    >>> plan.gcs, plan.worker_min, plan.worker_max
    (26968, 27000, 27491)
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from slurm_rl.errors import BringUpError

FIRST_PORT = 10_200
BLOCK_SIZE = 524
# A prime, so that every stride visits all blocks before it repeats one.
NUM_BLOCKS = 43
# Named ports at the start of a block, then the spare ones, then Ray's workers.
_SPARE_OFFSET = 16
_WORKER_OFFSET = 32


@dataclass(frozen=True)
class PortPlan:
    """Every port of one attempt on one node. Plain numbers, so it goes into JSON as it is."""

    candidate: int
    """How many blocks were found busy before this one."""
    gcs: int
    dashboard: int
    dashboard_agent_listen: int
    dashboard_agent_grpc: int
    node_manager: int
    object_manager: int
    runtime_env_agent: int
    metrics_export: int
    autoscaler_metrics: int
    """For AUTOSCALER_METRIC_PORT; Ray's default is one fixed port for every head on the machine."""
    dashboard_metrics: int
    """For DASHBOARD_METRIC_PORT; fixed by default in the same way."""
    rendezvous: int
    """torch.distributed's store."""
    guard: int
    """Bound by `choose_ports` for as long as its process lives; nothing else uses it."""
    spare_min: int
    """First of the ports that have no name yet: reward servers, weight transfer."""
    spare_max: int
    worker_min: int
    worker_max: int

    def all_ports(self) -> list[int]:
        """Every port of the block that something may bind, each once."""
        ranges = [*range(self.spare_min, self.spare_max + 1), *range(self.worker_min, self.worker_max + 1)]
        named = [value for name, value in asdict(self).items() if name in _NAMED]
        return named + ranges


_RANGES = ("spare_min", "spare_max", "worker_min", "worker_max")
_NAMED = tuple(field.name for field in fields(PortPlan) if field.name != "candidate" and field.name not in _RANGES)

# The sockets that hold the guard ports. They live as long as this process, and no child inherits them
# through exec, so a block is free again the moment its agent is gone, whatever way it went.
_guards: dict[int, socket.socket] = {}


def derive_port_block(job_key: str, attempt: int, candidate: int) -> PortPlan:
    """The block that this attempt of this job tries as its `candidate`-th; the same on every call.

    Args:
        job_key: the Slurm job id, or any other text that names the job on this machine.
        attempt: attempts differ too, so that sockets of the last one in TIME_WAIT are not in the way.
        candidate: 0 for the first choice; NUM_BLOCKS candidates visit every block once.
    """
    digest = int.from_bytes(hashlib.sha256(job_key.encode()).digest()[:8], "big")
    first = int(job_key) if job_key.isascii() and job_key.isdigit() else digest
    # The stride comes from the digest: two jobs that meet in one block part ways in the next.
    stride = 1 + digest % (NUM_BLOCKS - 1)
    index = (first + (attempt + candidate) * stride) % NUM_BLOCKS
    base = FIRST_PORT + index * BLOCK_SIZE
    return PortPlan(
        candidate=candidate,
        spare_min=base + _SPARE_OFFSET,
        spare_max=base + _WORKER_OFFSET - 1,
        worker_min=base + _WORKER_OFFSET,
        worker_max=base + BLOCK_SIZE - 1,
        **{name: base + offset for offset, name in enumerate(_NAMED)},
    )


def dashboard_port(gcs_port: int) -> int:
    """Where the dashboard of the head with this GCS port listens, on loopback.

    >>> dashboard_port(derive_port_block("812345", 0, 0).gcs) == derive_port_block("812345", 0, 0).dashboard
    True
    """
    return gcs_port + _NAMED.index("dashboard") - _NAMED.index("gcs")


def check_dashboard_port(port: int | None, host: str) -> None:
    """Raise BringUpError where a port that the user chose is taken: Ray would use one that nobody forwards."""
    if port is not None and prove_free([port]):
        raise BringUpError(
            "ray.dashboard_port must be free on the head node",
            seen=f"{port} on {host} is not",
            action="ray.dashboard_port=null for a free one, or another number",
        )


def prove_free(ports: Iterable[int]) -> list[int]:
    """The ports among `ports` that cannot be bound now.

    Ports in TIME_WAIT count as busy: not every server of ours sets SO_REUSEADDR.
    """
    busy = []
    for port in ports:
        bound = _bind(port)
        if bound is None:
            busy.append(port)
        else:
            bound.close()
    return busy


def choose_ports(job_key: str, attempt: int, tries: int = NUM_BLOCKS) -> PortPlan:
    """The first candidate block that is wholly free, held by its guard until this process ends.

    Raises:
        BringUpError: all candidates had a busy port; the message lists them.
    """
    report = []
    for candidate in range(tries):
        plan = derive_port_block(job_key, attempt, candidate)
        # Guard first: of two jobs that look at one block at the same moment, only one goes on.
        guard = _bind(plan.guard)
        if guard is None:
            report.append(f"{plan.gcs}-{plan.worker_max} (held by another job)")
            continue
        busy = prove_free(port for port in plan.all_ports() if port != plan.guard)
        if not busy:
            _guards[plan.guard] = guard
            return plan
        guard.close()
        report.append(f"{plan.gcs}-{plan.worker_max} ({_shorten(busy)} busy)")
    raise BringUpError(
        f"every port of one block of {BLOCK_SIZE} must be free on the node",
        seen="; ".join(report),
        where=os.uname().nodename,
        action="see who listens there with `ss -ltnp`, or exclude the node",
    )


def _bind(port: int) -> socket.socket | None:
    """A socket bound to the port, or None when somebody has it.

    The wildcard address meets every other listener, on loopback and on each interface.
    """
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.bind(("0.0.0.0", port))
    except OSError:
        bound.close()
        return None
    return bound


def _shorten(ports: list[int]) -> str:
    shown = ", ".join(map(str, ports[:5]))
    return shown if len(ports) <= 5 else f"{shown} and {len(ports) - 5} more"
