from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.slurm.cluster import accounting, packages, slots
from tests.slurm.cluster.config import Shape, make_gpus, write_config
from tests.slurm.cluster.daemons import Daemons
from tests.slurm.cluster.leftovers import Leftovers, find_leftovers
from tests.slurm.cluster.network import build_network
from tests.slurm.cluster.node import Node, NodeProcess
from tests.slurm.cluster.packages import ClusterError
from tests.slurm.cluster.teardown import remove_stale, tear_down

# slurmstepd puts Unix sockets below the root, and a socket path holds at most 107 bytes.
MAX_ROOT_LENGTH = 60


class Cluster:
    """A Slurm cluster of `num_nodes` nodes with files under `root`, which every node sees.

    Args:
        root: private directory of the cluster; absolute, short, created if missing.
        shared: folders under /tmp that every node sees; the rest of /tmp is private to each node. Outside /tmp, /run
            and /dev/shm the nodes see this machine's files.
        settings: keys of slurm.conf to add or replace, for example {"MaxArraySize": "101"}.
    """

    def __init__(
        self,
        root: Path,
        num_nodes: int = 4,
        cpus: int = 4,
        mem_mb: int = 12_000,
        gpus: int = 2,
        accounting: bool = False,
        shared: Sequence[Path] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        if not root.is_absolute() or len(str(root)) > MAX_ROOT_LENGTH:
            raise ClusterError(f"the root must be absolute and at most {MAX_ROOT_LENGTH} long: {root}")
        self.root = root
        self.shape = Shape(num_nodes, cpus, mem_mb, gpus, accounting)
        self.shared = list(shared)
        self.settings = dict(settings or {})
        self._nodes: dict[str, Node] = {}

    def __enter__(self) -> Cluster:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def up(self) -> None:
        """Remove stale clusters, start this one, and wait until every node is idle."""
        if reason := packages.is_possible():
            raise ClusterError(reason)
        packages.ensure_packages(accounting=self.shape.accounting)
        with slots.registry_lock():
            remove_stale()
            self.slot = slots.claim(self.root)
        self.daemons = Daemons(self.slot.directory)
        try:
            self._build()
            for node in self._nodes.values():
                node.wait_up(self.env)
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Stop the cluster and delete its files except `root/log`."""
        with slots.registry_lock():
            tear_down(self.slot)

    def _build(self) -> None:
        for name in ("log", "state", "spool", "nodes", "munge"):
            (self.root / name).mkdir(parents=True, exist_ok=name == "log")
        # Users other than root submit jobs too.
        self.root.chmod(0o755)
        make_gpus(self.root, self.shape.gpus)
        write_config(self.root, self.slot, self.shape, self.settings)
        self._start_munge()
        build_network(self.slot, self.shape.num_nodes)
        if self.shape.accounting:
            accounting.start_accounting(self.root, self.slot, self.daemons, self.env)
        self.start_controller()
        for index in range(1, self.shape.num_nodes + 1):
            node = Node(self.root, self.slot, index, self.shared, self.daemons)
            self._nodes[node.name] = node
            node.boot(self.env)

    def _start_munge(self) -> None:
        """Start a private munged; the machine's own munge and its key stay untouched."""
        home = self.root / "munge"
        key = home / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        argv = ["munged", "--foreground", "--force", *(f"--{option}={home / name}" for option, name in files.items())]
        log = self.root / "log" / "munged.out"
        self.daemons.start("munged", argv, log=log)
        self.daemons.wait_ready("munged", (home / "socket").exists, log=log)

    @property
    def env(self) -> dict[str, str]:
        """This process's environment with SLURM_CONF set and without the variables of an outer Slurm job."""
        outer = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(outer)}
        return {**kept, "SLURM_CONF": str(self.root / "slurm.conf")}

    @property
    def nodes(self) -> list[str]:
        """Node names, in order; see `ip(name)` for addresses."""
        return [self.slot.node(index) for index in range(1, self.shape.num_nodes + 1)]

    def ip(self, node: str) -> str:
        return self.slot.ip(self.nodes.index(node) + 1)

    def run(
        self, argv: Sequence[str], *, node: str | None = None, timeout_s: float = 180.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node, or on `node` as over ssh; do not check its exit code."""
        command = self.on_node(node, argv) if node else list(argv)
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=timeout_s)

    def on_node(self, node: str, argv: Sequence[str]) -> list[str]:
        """Return the command that runs `argv` on the node, outside any job."""
        return self._nodes[node].enter(argv)

    def power_off(self, node: str) -> None:
        """Kill every process on the node at once. Slurm notices after 10 to 30 s."""
        self._nodes[node].power_off()

    def boot(self, node: str, *, wait: bool = True) -> None:
        """Start a node that is off, with an empty /tmp; if `wait`, return when Slurm has it back."""
        self._nodes[node].boot(self.env)
        if wait:
            self._nodes[node].wait_up(self.env)

    def hold_slurmd(self, node: str) -> Callable[[], None]:
        """Kill the node's slurmd (its jobs continue) and keep it down; return a function that lets it start again."""
        return self._nodes[node].hold_slurmd()

    def is_on(self, node: str) -> bool:
        return self.daemons.pid(node) is not None

    def node_state(self, node: str) -> str:
        """Return Slurm's state of the node: idle, allocated, down*, ..."""
        return self.run(["sinfo", "-h", "-p", "main", "-n", node, "-o", "%T"]).stdout.strip()

    def start_controller(self) -> None:
        """Start slurmctld from its saved state and wait until it answers."""
        log = self.root / "log" / "slurmctld.out"
        self.daemons.start("slurmctld", ["slurmctld", "-D"], log=log, env=self.env)
        self.daemons.wait_ready("slurmctld", lambda: self.is_controller_up, log=log)

    @property
    def is_controller_up(self) -> bool:
        return "UP" in self.run(["scontrol", "ping"]).stdout

    def stop_controller(self, *, kill: bool = False) -> None:
        """Stop slurmctld, with SIGKILL if `kill`; running jobs continue, commands fail."""
        self.daemons.stop("slurmctld", kill=kill, patience_s=30)

    def hold_accounting(self) -> Callable[[], None]:
        """Kill slurmdbd; return a function that starts it again."""
        self.daemons.stop("slurmdbd", kill=True)
        return lambda: accounting.start_slurmdbd(self.root, self.daemons, self.env)

    def restart_controller(self) -> None:
        self.stop_controller()
        self.start_controller()

    @contextmanager
    def changed(self, settings: Mapping[str, str]) -> Iterator[None]:
        """Change keys in slurm.conf within the context; the controller restarts to read them, jobs continue."""
        self._reconfigure({**self.settings, **settings})
        try:
            yield
        finally:
            self._reconfigure(self.settings)

    def _reconfigure(self, settings: Mapping[str, str]) -> None:
        write_config(self.root, self.slot, self.shape, settings)
        self.restart_controller()

    def processes(self, node: str) -> list[NodeProcess]:
        """Return the processes on the node, with pids of the node's namespace."""
        return self._nodes[node].processes()

    def signal(self, node: str, pid: int, number: int) -> None:
        """Send a signal to a process from `processes(node)`."""
        self._nodes[node].signal(pid, number)

    def clear_tmp(self, node: str) -> None:
        """Delete the files that jobs left in the node's private /tmp."""
        inside = self._nodes[node].init / "root"
        for path in self.leftovers(node).tmp:
            subprocess.run(["rm", "-rf", "--one-file-system", str(inside / path.lstrip("/"))], check=True)

    def leftovers(self, node: str) -> Leftovers:
        """Return everything on the node that an idle node does not have; falsy if nothing."""
        return find_leftovers(self._nodes[node])
