"""Client on a node for the fabric measurement, in the run's container.

    python -m slurm_rl.plugins.health.fabric_node <run directory> <leader's host> <leader's port>

It starts one rank per GPU, passes the leader's questions to all ranks, and returns one merged answer. Ranks that hang
in a collective are killed and replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_rl.errors import BringUpError
from slurm_rl.node.environment import read_device_uuids
from slurm_rl.node.limits import raise_limits
from slurm_rl.node.network import GLOO, NCCL, interface_of
from slurm_rl.plan.job import NODE_VARIABLE, JobPlan
from slurm_rl.plan.visibility import normalise_gpu_visibility
from slurm_rl.plugins.health.fabric import merge_ranks
from slurm_rl.plugins.health.fabric_rank import RankSpec
from slurm_rl.plugins.health.leader import TOKEN_VARIABLE
from slurm_rl.run_dir.run_dir import RunDir, read_json

_CONNECT_S = 30.0


class RankProcess:
    """A rank's process and the queue of its answers."""

    def __init__(self, spec: RankSpec, env: Mapping[str, str]) -> None:
        argv = [sys.executable, "-m", "slurm_rl.plugins.health.fabric_rank", *spec.to_argv()]
        self.process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read_lines, daemon=True).start()

    def _read_lines(self) -> None:
        for line in self.process.stdout or ():
            self._lines.put(line)
        self._lines.put("")  # the process has ended

    def send(self, question: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()

    def receive(self, deadline: float) -> dict[str, Any] | None:
        """Return the answer, an error if the process has ended, or None at the deadline."""
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        answer = json.loads(line) if line else {"error": f"its process ended with {self.process.wait()}"}
        return dict(answer)


class Ranks:
    """All ranks of the node; on a CPU one."""

    def __init__(self, plan: JobPlan, env: Mapping[str, str], num_cpu_ranks: int = 1) -> None:
        self.on_gpus = plan.accelerator != "cpu"
        self.number, self.env = plan.gpus_per_node if self.on_gpus else num_cpu_ranks, env
        self._ranks: list[RankProcess] = []
        self._folder = ""

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the merged answer of all ranks within the question's `within_s`."""
        if not self._ranks:
            self._folder = tempfile.mkdtemp(prefix="srl-fabric-")
            specs = [RankSpec(local, self.number, self.on_gpus, self._folder) for local in range(self.number)]
            self._ranks = [RankProcess(spec, self.env) for spec in specs]
        deadline = time.monotonic() + float(question["within_s"])
        for rank in self._ranks:
            rank.send(question)
        answers = [rank.receive(deadline) for rank in self._ranks]
        if None in answers or any(rank.process.poll() is not None for rank in self._ranks):
            self.close()
        return merge_ranks(answers)

    def close(self) -> None:
        """Kill the ranks; the next question starts new ones."""
        for rank in self._ranks:
            rank.process.kill()
        self._ranks = []
        shutil.rmtree(self._folder, ignore_errors=True)


def run_environment(plan: JobPlan, granted: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a run's processes: one GPU mask, and no variables of Slurm's step."""
    env = {key: value for key, value in granted.items() if not key.startswith(("SLURM_", "PMI"))}
    uuids = read_device_uuids() if plan.accelerator == "amd" else []
    with contextlib.suppress(BringUpError):  # doctor's check `masks` reports it
        env = normalise_gpu_visibility(granted, plan.accelerator, plan.gpus_per_node, uuids).apply(env)
    return env


def main(run_dir: str, host: str, port: str) -> None:
    raise_limits()
    plan = JobPlan.from_json(read_json(RunDir(Path(run_dir)).plan))
    token = os.environ.pop(TOKEN_VARIABLE)
    env = run_environment(plan, {**os.environ, **plan.env})
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):  # of the launcher
        env.pop(name, None)
    with socket.create_connection((host, int(port)), timeout=_CONNECT_S) as leader:
        leader.settimeout(None)
        if interface := interface_of(leader.getsockname()[0]):
            env = {GLOO: interface, NCCL: interface, **env}
        ranks = Ranks(plan, env)
        stream = leader.makefile("rw", encoding="utf-8")
        stream.write(json.dumps({"token": token, "node": os.environ[NODE_VARIABLE], "port": 0}) + "\n")
        stream.flush()
        try:
            for line in stream:  # ends when the leader closes the connection
                stream.write(json.dumps(ranks.ask(json.loads(line))) + "\n")
                stream.flush()
        finally:
            ranks.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
