"""Part of a node in the fabric measurement, in the run's container.

    python -m slurm_rl.plugins.health.fabric_node <run directory> <empty folder that all nodes share> <number of nodes>

It starts one rank per GPU, and prints one line of JSON per task (see fabric.py). Node 0 hosts the store by which the
ranks of a pair find each other. Ranks that hang in a collective are killed and replaced.
"""

import contextlib
import json
import multiprocessing
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from slurm_rl.errors import BringUpError
from slurm_rl.node.bound_torchrun import open_store
from slurm_rl.node.environment import read_device_uuids
from slurm_rl.node.limits import raise_limits
from slurm_rl.node.network import GLOO, NCCL, interface_of
from slurm_rl.node.rendezvous import comes_true, own_address
from slurm_rl.plan.job import NODE_VARIABLE, JobPlan
from slurm_rl.plan.visibility import normalise_gpu_visibility
from slurm_rl.plugins.health.fabric import merge_ranks, pair_up
from slurm_rl.plugins.health.fabric_rank import RankSpec, serve
from slurm_rl.run_dir.run_dir import RunDir, read_json, write_json

CONNECT_S = 300.0
"""Time for a node to start; it may have to unpack its image."""
COMPUTE_S = 180.0
"""Includes the import of torch from a file system that may be cold."""
REDUCE_S = 60.0
_STORE = timedelta(seconds=COMPUTE_S + REDUCE_S)
_SPAWN = multiprocessing.get_context("spawn")


class Ranks:
    """All ranks of the node; on a CPU one. They inherit os.environ."""

    def __init__(self, plan: JobPlan, num_cpu_ranks: int = 1) -> None:
        self.on_gpus = plan.accelerator != "cpu"
        self.number = plan.gpus_per_node if self.on_gpus else num_cpu_ranks
        self._ranks: list[tuple[BaseProcess, Connection]] = []
        self._folder = ""

    def ask(self, question: Mapping[str, Any], within_s: float) -> dict[str, Any]:
        """Return the merged answer of all ranks; ranks without an answer in time are replaced."""
        if not self._ranks:
            self._folder = tempfile.mkdtemp(prefix="srl-fabric-")
            self._ranks = [self._start(local) for local in range(self.number)]
        deadline = time.monotonic() + within_s
        for _, link in self._ranks:
            with contextlib.suppress(OSError):
                link.send(question)
        answers = [self._receive(link, deadline) for _, link in self._ranks]
        if None in answers or any(not process.is_alive() for process, _ in self._ranks):
            self.close()
        return merge_ranks(answers)

    def _start(self, local_rank: int) -> tuple[BaseProcess, Connection]:
        ours, theirs = _SPAWN.Pipe()
        spec = RankSpec(local_rank, self.number, self.on_gpus, self._folder)
        process = _SPAWN.Process(target=serve, args=(spec, theirs), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def _receive(self, link: Connection, deadline: float) -> dict[str, Any] | None:
        try:
            return dict(link.recv()) if link.poll(max(0.0, deadline - time.monotonic())) else None
        except (EOFError, OSError):
            return {"error": "its process ended"}

    def close(self) -> None:
        """Kill the ranks; the next question starts new ones."""
        for process, link in self._ranks:
            process.kill()
            link.close()
        self._ranks = []
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(frozen=True)
class Meeting:
    """The nodes that take part, and the store that they share."""

    address: str
    port: int
    ranks: list[int]
    store: Any

    def wait_for_all(self, key: str, number: int, within_s: float) -> bool:
        """Wait until so many nodes have come to the same place; return whether they have in time."""
        self.store.add(key, 1)
        return comes_true(lambda: self.store.add(key, 0) >= number, within_s)


def meet(folder: Path, rank: int, num_nodes: int, name: str) -> Meeting:
    """Wait for the other nodes; node 0 decides who takes part. Raises BringUpError without it or without others."""
    write_json(folder / f"node-{rank}.json", name)
    head = folder / "head.json"
    if rank == 0:
        # Listing the folder: NFS caches that a file is missing.
        comes_true(lambda: len(list(folder.glob("node-*.json"))) >= num_nodes, CONNECT_S)
        ranks = [one for one in range(num_nodes) if (folder / f"node-{one}.json") in set(folder.iterdir())]
        if len(ranks) < 2:
            raise BringUpError(f"none of the other nodes started within {CONNECT_S:g} s")
        address = own_address(str(read_json(folder / f"node-{ranks[1]}.json")))
        store = open_store(address, 0, None, True, _STORE, wait_for_workers=False)
        write_json(head, {"address": address, "port": store.port, "ranks": ranks})
        return Meeting(address, int(store.port), ranks, store)
    if not comes_true(lambda: head in set(folder.iterdir()), CONNECT_S + REDUCE_S):
        raise BringUpError(f"node 0 did not start within {CONNECT_S:g} s")
    found = read_json(head)
    store = open_store(found["address"], found["port"], None, False, _STORE, wait_for_workers=False)
    return Meeting(found["address"], found["port"], found["ranks"], store)


def run_environment(plan: JobPlan, granted: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a run's processes: one GPU mask, and no variables of Slurm's step."""
    env = {key: value for key, value in granted.items() if not key.startswith(("SLURM_", "PMI"))}
    uuids = read_device_uuids() if plan.accelerator == "amd" else []
    with contextlib.suppress(BringUpError):  # doctor's check `masks` reports it
        env = normalise_gpu_visibility(granted, plan.accelerator, plan.gpus_per_node, uuids).apply(env)
    for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):  # of the launcher
        env.pop(key, None)
    return env


class Node:
    """Runs the tasks of one node and prints its answers."""

    def __init__(self, plan: JobPlan, rank: int, name: str) -> None:
        self.plan, self.rank, self.name = plan, rank, name
        self.ranks = Ranks(plan)

    def report(self, task: str, answer: Mapping[str, Any], **more: Any) -> bool:
        """Print an answer; return whether it has no error."""
        line = json.dumps({"rank": self.rank, "task": task, **more, **answer})
        print(f"{self.name}|fabric|{line}", flush=True)
        return "error" not in answer and answer.get("is_right") is not False

    def compute(self) -> bool:
        return self.report("compute", self.ranks.ask({"do": "compute"}, COMPUTE_S))

    def measure_with_others(self, meeting: Meeting) -> None:
        """Compute, reduce with one other node in each round, then with all nodes if no pair failed."""
        store = meeting.store
        if self.compute():
            store.set(f"able/{self.rank}", "1")
        meeting.wait_for_all("compute", len(meeting.ranks), COMPUTE_S)
        if self.rank == meeting.ranks[0]:
            able = [rank for rank in meeting.ranks if store.check([f"able/{rank}"])]
            store.set("able", json.dumps(able))
        able = json.loads(store.get("able"))
        if self.rank not in able or len(able) < 2:
            return
        place, is_healthy = able.index(self.rank), True
        for number, pairs in enumerate(pair_up(len(able))):
            meeting.wait_for_all(f"round-{number}", len(able), REDUCE_S)
            for pair in (pair for pair in pairs if place in pair):
                peer = able[pair[1] if place == pair[0] else pair[0]]
                answer = self.reduce(meeting, f"{number}/{pair[0]}", pair.index(place), 2)
                is_healthy &= self.report("pair", answer, peer=peer)
        store.add("healthy", int(is_healthy))
        meeting.wait_for_all("pairs", len(able), REDUCE_S)
        if store.add("healthy", 0) == len(able):
            self.report("all", self.reduce(meeting, "all", place, len(able)))
            meeting.wait_for_all("end", len(able), REDUCE_S)

    def reduce(self, meeting: Meeting, key: str, place: int, num_nodes: int) -> dict[str, Any]:
        first, world = place * self.ranks.number, num_nodes * self.ranks.number
        address = {"address": meeting.address, "port": meeting.port, "key": key}
        return self.ranks.ask({"do": "reduce", **address, "first": first, "world": world}, REDUCE_S)


def main(run_dir: str, folder: str, number: str) -> None:
    raise_limits()
    plan, num_nodes = JobPlan.from_json(read_json(RunDir(Path(run_dir)).plan)), int(number)
    # The step of a single node may be a task with another number.
    rank = int(os.environ["SLURM_PROCID"]) if num_nodes > 1 else 0
    node = Node(plan, rank, os.environ.get(NODE_VARIABLE) or socket.gethostname())
    env = run_environment(plan, {**os.environ, **plan.env})
    os.environ.clear()
    os.environ.update(env)
    try:
        if num_nodes == 1:
            node.compute()
            return
        meeting = meet(Path(folder), rank, num_nodes, node.name)
        own = meeting.address if rank == meeting.ranks[0] else own_address(meeting.address)
        if interface := interface_of(own):
            os.environ.update({GLOO: interface, NCCL: interface, **os.environ})
        node.measure_with_others(meeting)
    except BringUpError as error:
        node.report("compute", {"error": str(error)})
    finally:
        node.ranks.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
