"""How the nodes find each other, by files in the folder that all of them see."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_rl.errors import SlurmRLError
from slurm_rl.node.network import interface_of
from slurm_rl.node.ports import choose_ports
from slurm_rl.node.rendezvous import own_address
from slurm_rl.plan.job import NODE_VARIABLE
from slurm_rl.plugins.health.doctor.finding import Question
from slurm_rl.run_dir import read_json, write_json

# A node may unpack its image while others have it.
MEETING_S = 60.0
_POLL_S = 0.1


def meet(question: Question, within_s: float = MEETING_S) -> dict[str, Any]:
    """`address` and `port` of the first node, and this node's `interface` to it; `error` where they did not meet."""
    try:
        return _meet(question, time.monotonic() + within_s)
    except (SlurmRLError, OSError) as error:
        return {"error": str(error)}


def _meet(question: Question, deadline: float) -> dict[str, Any]:
    folder, num_nodes = question.folder, question.plan.num_nodes
    write_json(folder / f"here-{question.rank}.json", os.environ.get(NODE_VARIABLE) or socket.gethostname())
    missing = _wait(
        lambda: [rank for rank in range(num_nodes) if not _is_there(folder / f"here-{rank}.json")], deadline
    )
    if missing:
        return {"error": f"{num_nodes - len(missing)} of {num_nodes} nodes came; not those of the tasks {missing[:8]}"}
    head = folder / "head.json"
    if question.rank == 0:
        address = own_address(str(read_json(folder / "here-1.json")))
        write_json(head, {"address": address, "port": choose_ports(folder.name, 0).rendezvous})
    elif _wait(lambda: [] if _is_there(head) else [0], deadline):
        return {"error": "the first node did not say where it listens"}
    found = read_json(head)
    own = found["address"] if question.rank == 0 else own_address(found["address"])
    return {**found, "interface": interface_of(own)}


def _wait(find_missing: Callable[[], list[int]], deadline: float) -> list[int]:
    while (missing := find_missing()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return missing


def _is_there(path: Path) -> bool:
    # Listing, not opening: NFS may remember for a minute that a file it was asked for is absent.
    return path.name in {entry.name for entry in path.parent.iterdir()}
