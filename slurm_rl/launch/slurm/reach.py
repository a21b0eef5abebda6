"""Find nodes that do not answer, before an srun: srun would wait for a lost node."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.slurm.command_line import run_slurm
from slurm_rl.launch.slurm.commands import slurmd_port

_TRY_S = 3.0
_THREADS = 32


def find_unreachable(hosts: Sequence[str], within_s: float) -> list[str]:
    """Return the hosts that did not answer at slurmd's port in time; none if Slurm does not report addresses."""
    try:
        addresses = parse_addresses(run_slurm(["sinfo", "-h", "-N", "-n", ",".join(hosts), "-o", "%N %o"]))
        port = slurmd_port()
    except SlurmRLError:
        return []
    return wait_for_answers({host: (addresses[host], port) for host in hosts if host in addresses and port}, within_s)


def parse_addresses(output: str) -> dict[str, str]:
    """Parse `sinfo -h -N -o '%N %o'`, which has a line for each partition of a node.

    >>> parse_addresses("n1 10.0.0.1\\nn1 10.0.0.1\\nn2 n2\\n")
    {'n1': '10.0.0.1', 'n2': 'n2'}
    """
    rows = (line.split() for line in output.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2}


def wait_for_answers(addresses: Mapping[str, tuple[str, int]], within_s: float) -> list[str]:
    """Poll the hosts until all have answered or the time is over; return the silent ones."""
    deadline, silent = time.monotonic() + within_s, list(addresses)
    with ThreadPoolExecutor(_THREADS) as pool:
        while silent:
            answers = list(pool.map(_answers, [addresses[host] for host in silent]))
            silent = [host for host, is_up in zip(silent, answers, strict=True) if not is_up]
            if time.monotonic() > deadline:
                break
    return silent


def _answers(address: tuple[str, int]) -> bool:
    began = time.monotonic()
    try:
        socket.create_connection(address, timeout=_TRY_S).close()
    except (ConnectionRefusedError, socket.gaierror):
        return True  # a refusal comes from a live node; an unresolved name proves nothing
    except OSError:
        time.sleep(max(0.0, began + 0.5 - time.monotonic()))  # "no route" returns at once
        return False
    return True
