"""The ports of one attempt on one node: derived from the job, checked by binding, reserved by a guard port.

All ports are between 10200 and 32767: above the ports of daemons, and below the range from which Linux assigns ports to
outgoing connections, where any `connect` may take a port that was free a moment ago.

The range has 43 blocks of 524 ports. A job's first block derives from its id, so that jobs with neighbouring ids, which
often share a node, try different blocks. If two jobs meet, the first to bind the block's guard port owns the block, and
the other tries its next candidate.

    >>> plan = derive_port_block("812345", attempt=0, candidate=0)
    >>> plan.gcs, plan.worker_min, plan.worker_max
    (26968, 27000, 27491)
"""

import hashlib
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, fields

from slurm_rl.errors import BringUpError

FIRST_PORT = 10_200
BLOCK_SIZE = 524
NUM_BLOCKS = 43
"""A prime, so that every stride visits all blocks."""
# Named ports at the start of a block, then the spare ones, then Ray's workers.
_SPARE_OFFSET = 16
_WORKER_OFFSET = 32


@dataclass(frozen=True)
class PortPlan:
    """Ports of one attempt on one node."""

    candidate: int
    """Number of blocks that were busy before this one."""
    gcs: int
    dashboard: int
    dashboard_agent_listen: int
    dashboard_agent_grpc: int
    node_manager: int
    object_manager: int
    runtime_env_agent: int
    metrics_export: int
    autoscaler_metrics: int
    """AUTOSCALER_METRIC_PORT; Ray's default is the same for every head on the machine."""
    dashboard_metrics: int
    """DASHBOARD_METRIC_PORT; likewise."""
    rendezvous: int
    """torch.distributed's store."""
    guard: int
    """Bound by `choose_ports` until its process ends."""
    spare_min: int
    """First of the ports for reward servers and weight transfer."""
    spare_max: int
    worker_min: int
    worker_max: int

    def all_ports(self) -> list[int]:
        """Return every port that may be bound."""
        ranges = [*range(self.spare_min, self.spare_max + 1), *range(self.worker_min, self.worker_max + 1)]
        return [getattr(self, name) for name in _NAMED] + ranges


_RANGES = ("spare_min", "spare_max", "worker_min", "worker_max")
_NAMED = tuple(field.name for field in fields(PortPlan) if field.name != "candidate" and field.name not in _RANGES)

# Sockets of the guard ports. No child inherits them, so a block is free as soon as its agent has ended.
_guards: dict[int, socket.socket] = {}


def derive_port_block(job_key: str, attempt: int, candidate: int) -> PortPlan:
    """Return the n-th candidate block of this attempt; the same on every call.

    Args:
        job_key: Slurm's job id, or any other name of the job on this machine.
        attempt: attempts differ, because sockets of the last one may be in TIME_WAIT.
        candidate: 0 to NUM_BLOCKS - 1.
    """
    digest = int.from_bytes(hashlib.sha256(job_key.encode()).digest()[:8], "big")
    first = int(job_key) if job_key.isascii() and job_key.isdigit() else digest
    # Two jobs that meet in one block have different strides.
    stride = 1 + digest % (NUM_BLOCKS - 1)
    base = FIRST_PORT + (first + (attempt + candidate) * stride) % NUM_BLOCKS * BLOCK_SIZE
    return PortPlan(
        candidate=candidate,
        spare_min=base + _SPARE_OFFSET,
        spare_max=base + _WORKER_OFFSET - 1,
        worker_min=base + _WORKER_OFFSET,
        worker_max=base + BLOCK_SIZE - 1,
        **{name: base + offset for offset, name in enumerate(_NAMED)},
    )


def dashboard_port(gcs_port: int) -> int:
    """Return the loopback port of the dashboard that belongs to this GCS port.

    >>> dashboard_port(derive_port_block("812345", 0, 0).gcs) == derive_port_block("812345", 0, 0).dashboard
    True
    """
    return gcs_port + _NAMED.index("dashboard") - _NAMED.index("gcs")


def check_dashboard_port(port: int | None, host: str) -> None:
    """Raise BringUpError if the user's dashboard port is taken: Ray would choose another one."""
    if port is not None and find_busy([port]):
        raise BringUpError(
            "ray.dashboard_port must be free on the head node",
            seen=f"{port} on {host} is not",
            action="ray.dashboard_port=null for a free one, or another number",
        )


def find_busy(ports: Iterable[int]) -> list[int]:
    """Return the ports that cannot be bound, including those in TIME_WAIT: not every server sets SO_REUSEADDR."""
    busy = []
    for port in ports:
        bound = _bind(port)
        if bound is None:
            busy.append(port)
        else:
            bound.close()
    return busy


def choose_ports(job_key: str, attempt: int, tries: int = NUM_BLOCKS) -> PortPlan:
    """Return the first free block, reserved until this process ends. Raises BringUpError without one."""
    report = []
    for candidate in range(tries):
        plan = derive_port_block(job_key, attempt, candidate)
        # The guard first: of two jobs that check a block at the same time only one continues.
        guard = _bind(plan.guard)
        if guard is None:
            report.append(f"{plan.gcs}-{plan.worker_max} (held by another job)")
            continue
        busy = find_busy(port for port in plan.all_ports() if port != plan.guard)
        if not busy:
            _guards[plan.guard] = guard
            return plan
        guard.close()
        shown = ", ".join(map(str, busy[:5])) + (f" and {len(busy) - 5} more" if len(busy) > 5 else "")
        report.append(f"{plan.gcs}-{plan.worker_max} ({shown} busy)")
    raise BringUpError(
        f"every port of one block of {BLOCK_SIZE} must be free on the node",
        seen="; ".join(report),
        where=os.uname().nodename,
        action="see who listens there with `ss -ltnp`, or exclude the node",
    )


def _bind(port: int) -> socket.socket | None:
    """Return a socket on the port; None if it is taken on any address."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.bind(("0.0.0.0", port))
    except OSError:
        bound.close()
        return None
    return bound
