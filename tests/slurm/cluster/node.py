import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.slurm.cluster.cgroups import remove_cgroups
from tests.slurm.cluster.daemons import Daemons
from tests.slurm.cluster.packages import ClusterError
from tests.slurm.cluster.slots import Slot
from tests.slurm.cluster.waiting import wait_until

SHM_MB = 6000


class NodeProcess(NamedTuple):
    """A process of a node; `pid` is the number in the node's namespace."""

    pid: int
    cmdline: str


class Node:
    """One node of the cluster."""

    def __init__(self, root: Path, slot: Slot, index: int, shared: Sequence[Path], daemons: Daemons) -> None:
        self.name = slot.node(index)
        self.root = root
        self.shared = list(shared)
        self.namespace = slot.namespace(self.name)
        self.daemons = daemons

    def boot(self, env: Mapping[str, str]) -> None:
        """Start the node with empty /tmp, /run and /dev/shm; its slurmd registers with the controller."""
        if self.daemons.pid(self.name) is not None:
            raise ClusterError(f"node {self.name} is running already")
        (self.tmp.parent).mkdir(parents=True, exist_ok=True)
        subprocess.run(["rm", "-rf", "--one-file-system", str(self.tmp), str(self.tmp.with_name("hold"))], check=True)
        self.tmp.mkdir()
        self.tmp.chmod(0o1777)
        join = ["nsenter", f"--net=/run/netns/{self.namespace}"]
        unshare = ["unshare", "--uts", "--mount", "--pid", "--ipc", "--fork", "--kill-child"]
        body = ["sh", str(Path(__file__).with_name("node.sh")), self.name, str(self.root), str(SHM_MB)]
        argv = [*join, *unshare, *body, *map(str, self.shared)]
        self.daemons.start(self.name, argv, log=self.log, env=env)

    def power_off(self) -> None:
        """Kill every process of the node at once."""
        self.daemons.stop(self.name, kill=True)
        remove_cgroups(self.name)

    def hold_slurmd(self) -> Callable[[], None]:
        """Kill the node's slurmd and keep it down; return a function that lets it start again."""
        hold = self.tmp.with_name("hold")
        hold.touch()
        for process in self.processes():
            if Path(process.cmdline.split()[0]).name == "slurmd":
                self.signal(process.pid)
        return lambda: hold.unlink(missing_ok=True)

    def wait_up(self, env: Mapping[str, str]) -> None:
        """Wait until Slurm can schedule jobs on the node."""
        sinfo = ["sinfo", "-h", "-p", "main", "-n", self.name, "-t", "idle,mixed,allocated", "-o", "%D"]

        def is_up() -> bool:
            return subprocess.run(sinfo, env=dict(env), capture_output=True, text=True).stdout.strip() == "1"

        self.daemons.wait_ready(self.name, is_up, log=self.log)

    @property
    def log(self) -> Path:
        return self.root / "log" / f"node-{self.name}.out"

    @property
    def tmp(self) -> Path:
        return self.root / "nodes" / self.name / "tmp"

    @property
    def init(self) -> Path:
        """/proc entry on this machine of the node's first process."""
        pid = self.daemons.pid(self.name)
        if pid is None:
            raise ClusterError(f"node {self.name} is off")
        children = Path(f"/proc/{pid}/task/{pid}/children")
        return Path("/proc") / wait_until(lambda: children.read_text().split(), f"{self.name} to start")[0]

    def host_processes(self) -> dict[int, Path]:
        """Return a map from pid inside the node to /proc entry on this machine."""
        namespace = (self.init / "ns" / "pid").readlink()
        found: dict[int, Path] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if (entry / "ns" / "pid").readlink() == namespace:
                    pids = re.search(r"^NSpid:(.*)$", (entry / "status").read_text(), re.MULTILINE)
                    if pids:
                        found[int(pids[1].split()[-1])] = entry
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it ended meanwhile, or belongs to another user
        return found

    def processes(self) -> list[NodeProcess]:
        """Return the node's processes without zombies (they have no command line)."""
        found = []
        for pid, entry in sorted(self.host_processes().items()):
            try:
                argv = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if argv != [b""]:
                found.append(NodeProcess(pid, b" ".join(argv).decode(errors="replace")))
        return found

    def signal(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to the process with this pid inside the node."""
        entry = self.host_processes().get(pid)
        if entry is None:
            raise ClusterError(f"node {self.name} has no process {pid}")
        os.kill(int(entry.name), number)

    def enter(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs `argv` on the node outside Slurm (as ssh would)."""
        return ["nsenter", f"--target={self.init.name}", "--all", "--", *argv]
