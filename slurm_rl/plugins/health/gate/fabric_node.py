"""A node in the test of the fabric, in the run's container: its ranks, and what the controller asks of them.

    python -m slurm_rl.plugins.health.gate.fabric_node <run directory> <host of the leader> <port>

A question a line, for all ranks, with the seconds that they have; an answer a line, of all ranks together. Ranks that
hang in a collective never come back from it, so that they are ended and others take their place.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from slurm_rl.node.limits import raise_limits
from slurm_rl.node.network import GLOO, NCCL, interface_of
from slurm_rl.plan.job import NODE_VARIABLE, JobPlan
from slurm_rl.plugins.health.doctor.finding import Question
from slurm_rl.plugins.health.doctor.probes import normal_environment
from slurm_rl.plugins.health.doctor.rank import Words
from slurm_rl.plugins.health.gate.fabric import merge_ranks
from slurm_rl.run_dir import RunDir, read_json

WORD = "SLURM_RL_FABRIC"
"""The environment variable: by it the leader knows its nodes."""
_CONNECT_S = 30.0


@dataclass
class _Rank:
    process: subprocess.Popen[str]
    said: queue.Queue[str] = field(default_factory=queue.Queue)

    def listen(self) -> None:
        out: IO[str] | None = self.process.stdout
        for line in out or ():
            self.said.put(line)
        self.said.put("")  # it has ended


class Ranks:
    """The processes of this node, one for each GPU; on a CPU one."""

    def __init__(self, plan: JobPlan, env: Mapping[str, str]) -> None:
        self.on_gpus = plan.accelerator != "cpu"
        self.number, self.env = plan.gpus_per_node if self.on_gpus else 1, dict(env)
        self._ranks: list[_Rank] = []
        self._folder = ""
        """Of these ranks: their store."""

    def ask(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What all of them answer within the question's `within_s`."""
        if not self._ranks:
            self._folder = tempfile.mkdtemp(prefix="srl-fabric-")
            self._ranks = [self._start(local) for local in range(self.number)]
        deadline = time.monotonic() + float(asked["within_s"])
        for rank in self._ranks:
            with contextlib.suppress(OSError):
                assert rank.process.stdin is not None
                rank.process.stdin.write(json.dumps(asked) + "\n")
                rank.process.stdin.flush()
        answers = [self._read(rank, deadline) for rank in self._ranks]
        if None in answers:
            self.close()
        return merge_ranks(answers)

    def _read(self, rank: _Rank, deadline: float) -> dict[str, Any] | None:
        try:
            line = rank.said.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        if not line:
            status = rank.process.wait()
            self.close()
            return {"error": f"its process ended with {status}"}
        found: dict[str, Any] = json.loads(line)
        return found

    def _start(self, local: int) -> _Rank:
        words = Words(local, self.number, 0, 1, self.on_gpus, self._folder)
        argv = [sys.executable, "-m", "slurm_rl.plugins.health.gate.fabric_rank", *words.to_argv()]
        rank = _Rank(subprocess.Popen(argv, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        threading.Thread(target=rank.listen, daemon=True).start()
        return rank

    def close(self) -> None:
        """End them; the next question has new ones."""
        for rank in self._ranks:
            rank.process.kill()
        self._ranks = []
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def main(run_dir: str, host: str, port: str) -> None:
    raise_limits()  # as a node agent does
    plan = JobPlan.from_json(read_json(RunDir(Path(run_dir)).plan))
    word = os.environ.pop(WORD)
    env = normal_environment(Question(Path(run_dir), plan, None), {**os.environ, **plan.env})
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):  # a launcher's of a rank are not these
        env.pop(name, None)
    with socket.create_connection((host, int(port)), timeout=_CONNECT_S) as leader:
        leader.settimeout(None)
        if interface := interface_of(leader.getsockname()[0]):
            for name in (GLOO, NCCL):
                env.setdefault(name, interface)
        ranks = Ranks(plan, env)
        words = leader.makefile("rw", encoding="utf-8")
        words.write(json.dumps({"word": word, "node": os.environ[NODE_VARIABLE], "port": 0}) + "\n")
        words.flush()
        try:
            # The leader closes the connection at the end.
            for line in words:
                words.write(json.dumps(ranks.ask(json.loads(line))) + "\n")
                words.flush()
        finally:
            ranks.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
