"""Which nodes answer at all, asked before an srun: it tries a node once, and waits for one that is gone."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.slurm.command_line import run_slurm
from slurm_rl.launch.slurm.commands import slurmd_port

_TRY_S = 3.0
_AT_ONCE = 32


def find_unreachable(hosts: Sequence[str], within_s: float) -> list[str]:
    """Those whose machine has not answered in time, at the port by which srun reaches a node's slurmd.

    A refusal is an answer: then the node lives, and srun has the word. Where Slurm does not tell address or port,
    nobody is unreachable.
    """
    try:
        addresses = parse_addresses(run_slurm(["sinfo", "-h", "-N", "-n", ",".join(hosts), "-o", "%N %o"]))
        port = slurmd_port()
    except SlurmRLError:
        return []
    return wait_for_answers({host: (addresses[host], port) for host in hosts if host in addresses and port}, within_s)


def parse_addresses(output: str) -> dict[str, str]:
    """Read `sinfo -h -N -o '%N %o'`, which has a line for each partition of a node.

    >>> parse_addresses("n1 10.0.0.1\\nn1 10.0.0.1\\nn2 n2\\n")
    {'n1': '10.0.0.1', 'n2': 'n2'}
    """
    rows = (line.split() for line in output.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2}


def wait_for_answers(asked: Mapping[str, tuple[str, int]], within_s: float) -> list[str]:
    """The hosts that have not answered after that time; at once when all have."""
    give_up_at, silent = time.monotonic() + within_s, list(asked)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        while silent:
            heard = list(pool.map(_answers, [asked[host] for host in silent]))
            silent = [host for host, is_there in zip(silent, heard, strict=True) if not is_there]
            if time.monotonic() > give_up_at:
                break
    return silent


def _answers(address: tuple[str, int]) -> bool:
    began = time.monotonic()
    try:
        socket.create_connection(address, timeout=_TRY_S).close()
    except (ConnectionRefusedError, socket.gaierror):
        return True  # somebody refused; a name that does not resolve here tells nothing
    except OSError:
        time.sleep(max(0.0, began + 0.5 - time.monotonic()))  # no route is told at once
        return False
    return True
