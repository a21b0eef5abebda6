"""Test machines without Slurm: each has its own address, host name and node-local folder.

Each `node` runs in separate namespaces, as if started by ssh on that machine.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from tests.slurm.cluster import is_possible, wait_until
from tests.slurm.cluster.network import build_network
from tests.slurm.cluster.slots import claim, registry_lock
from tests.slurm.cluster.teardown import remove_stale, tear_down
from tests.slurm.light_python import make_light_python

ROOT = Path(__file__).parents[2]
NUM_MACHINES = 3
TIMEOUT_S = 180.0
TOKEN = "a-secret-of-these-tests-alone"
RUNPOD_HEAD = {"HEAD_POD_ID": "abc123", "EXPECTED_WORKERS": "1"}
RUNPOD_WORKER = {"RAY_WORKER": "1", "HEAD_POD_ID": "abc123", "RUNPOD_POD_ID": "def456"}
RUNPOD_NAMES = {"abc123.runpod.internal": 1}
"""Extra /etc/hosts names in RunPod's network."""
# Prefixes of this machine's variables that the machines must not inherit.
FOREIGN = ("SLURM_", "DSTACK_", "GCP_", "RUNPOD_", "RAY_", "HEAD_POD_ID", "EXPECTED_WORKERS", "MASTER_", "WORLD_SIZE")


class Node:
    """One `python -m slurm_rl` process on one machine."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process, self.log = process, log

    @property
    def output(self) -> str:
        return self.log.read_text()

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """Return the exit code; fail with the output on timeout."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it runs on after {timeout_s:g} s: {self.output}") from None

    def wait_for(self, words: str) -> None:
        def is_there() -> bool:
            assert self.process.poll() is None or words in self.output, self.output
            return words in self.output

        wait_until(is_there, words, timeout_s=TIMEOUT_S)


class Machines:
    """Three machines, numbered from 1, on one network."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shared = root / "w"
        self.python = make_light_python(root)
        self.nodes: list[Node] = []
        self._port = 11000
        for number in range(1, NUM_MACHINES + 1):
            for folder in ("t", "w"):
                (self.root / "own" / str(number) / folder).mkdir(parents=True)
        for folder in (self.shared, root / "t", root / "model"):
            folder.mkdir()

    def up(self) -> None:
        with registry_lock():
            remove_stale()
            self.slot = claim(self.root)
        build_network(self.slot, NUM_MACHINES)

    def down(self) -> None:
        self.stop_all()
        with registry_lock():
            tear_down(self.slot)

    def stop_all(self) -> None:
        """Stop the processes that a failed test left, with SIGTERM: a killed command would leave its run behind."""
        going = [node for node in self.nodes if node.process.poll() is None]
        for node in going:
            stop(node)
        for node in going:
            try:
                node.process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                node.process.kill()
                node.process.wait()
        self.nodes.clear()

    def ip(self, number: int) -> str:
        return self.slot.ip(number)

    def next_port(self) -> int:
        """Return an unused head port; each run needs its own."""
        self._port += 1
        return self._port

    def start(
        self,
        number: int,
        env: Mapping[str, str],
        *words: str,
        hosts: Mapping[str, int] | None = None,
        private_disk: bool = False,
    ) -> Node:
        """Run `python -m slurm_rl <words>` on a machine.

        Args:
            hosts: extra lines for its /etc/hosts: name -> number of the machine.
            private_disk: mount its own disk instead of the shared one.
        """
        names = {f"m{n}": n for n in range(1, NUM_MACHINES + 1)} | dict(hosts or {})
        table = self.root / f"hosts-{len(self.nodes)}"
        table.write_text("127.0.0.1 localhost\n" + "".join(f"{self.ip(n)} {name}\n" for name, n in names.items()))
        own = self.root / "own" / str(number)
        mounts = [(own / "t", self.root / "t"), (table, Path("/etc/hosts"))]
        mounts += [(own / "w", self.shared)] if private_disk else []
        lines = [f"hostname m{number}", *(f"mount --bind {source} {target}" for source, target in mounts)]
        command = shlex.join([sys.executable, "-m", "slurm_rl", *words])
        script = " && ".join([*lines, f"cd {self.root}", f"exec {command}"])
        enter = ["nsenter", f"--net=/run/netns/{self.slot.namespace(self.slot.node(number))}"]
        argv = [*enter, "unshare", "--uts", "--mount", "sh", "-c", script]
        full = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        full |= {"PYTHONPATH": str(ROOT), "SLURM_RL_TOKEN": TOKEN} | dict(env)
        log = self.root / f"node-{len(self.nodes)}-m{number}.log"
        with log.open("w") as out:
            process = subprocess.Popen(argv, env=full, stdout=out, stderr=subprocess.STDOUT, text=True)
        self.nodes.append(Node(process, log))
        return self.nodes[-1]

    def words(self, run: Path, *extra: str, port: int, tiny: bool = False) -> list[str]:
        """Return the arguments of `node` with the light trainer and a stand-in for Ray.

        Args:
            tiny: let the head create the model in the run directory instead of using a folder that every machine has.
        """
        settings = [f"run_dir={run}", f"cluster.python={self.python}", f"cluster.tmp_root={self.root}/t"]
        settings += [] if tiny else ["model=hf", f"model.path={self.root}/model"]
        settings += [f"job.start_timeout_s={TIMEOUT_S:g}", f"cluster.head_port={port}"]
        return ["join", "+exp=demo", *settings, *extra]


class Run:
    """Events and logs of a run, read from the head's disk."""

    def __init__(self, path: Path) -> None:
        self.run_dir = RunDir(path)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in read_rows(self.run_dir.events) if row["kind"] == kind]

    def wait_for_training(self, *nodes: Node, attempt: int = 1) -> None:
        """Wait until all nodes are up and the attempt trains; fail with the output of a node that ends before."""

        def is_there() -> bool:
            for node in nodes:
                assert node.process.poll() is None, node.output
            return "resumes after" in self.trainer_log(attempt)

        wait_until(is_there, f"attempt {attempt} to train", timeout_s=TIMEOUT_S)

    def wait_for_attempt(self, attempt: int) -> None:
        """Wait until the head has started this attempt."""
        wait_until(lambda: len(self.events("attempt/started")) >= attempt, f"attempt {attempt}", timeout_s=TIMEOUT_S)

    def trainer_log(self, attempt: int) -> str:
        log = self.run_dir.attempts / str(attempt) / "logs" / "driver.log"
        return log.read_text() if log.is_file() else ""

    def finish(self) -> None:
        (self.run_dir.path / "finish").touch()

    @property
    def end(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run_dir.end.read_text())
        return found


def dstack(machines: Machines, rank: int) -> dict[str, str]:
    """Return dstack's variables for one of two machines."""
    head, other = machines.ip(1), machines.ip(2)
    addresses = {"DSTACK_MASTER_NODE_IP": head, "DSTACK_NODES_IPS": f"{head}\n{other}"}
    return {"DSTACK_NODE_RANK": str(rank), "DSTACK_NODES_NUM": "2", **addresses}


@contextmanager
def machines_up() -> Iterator[Machines]:
    """Start the machines; if they cannot run, skip the test, or fail with SLURM_RL_REQUIRE_SLURM=1."""
    reason = is_possible() or ("" if shutil.which("ip") else "iproute2 is needed")
    if reason:
        (pytest.fail if os.environ.get("SLURM_RL_REQUIRE_SLURM") == "1" else pytest.skip)(f"no machines here: {reason}")
    # Short, because Ray's sockets are created below.
    root = Path(tempfile.mkdtemp(prefix="sm-", dir="/tmp"))
    machines = Machines(root)
    machines.up()
    try:
        yield machines
    finally:
        machines.down()
        shutil.rmtree(root)


def stop(node: Node) -> None:
    """Send the preemption notice of a spot machine."""
    node.process.send_signal(signal.SIGTERM)
