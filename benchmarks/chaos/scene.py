"""A run on a test cluster as the target of faults."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.chaos.disk import Disk
from slurm_rl.run_dir.jsonl import read_rows
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.cluster.packages import ClusterError
from tests.slurm.light.runs import LightRun

_FIND_S = 10.0
_NOWHERE = "02:00:00:00:00:01"
"""MAC address of no card: frames sent there are lost silently, as on a cut line."""


class Missed(Exception):
    """There was nothing that this fault could hit."""


class Scene:
    """Target of the faults: a run with its cluster, disk and clock."""

    def __init__(self, cluster: Cluster, run: LightRun, disk: Disk | None, clock: Path, words: dict[str, str]) -> None:
        """Args:
        clock: folder of clock offsets; see clock/sitecustomize.py.
        words: target -> words of its command line.
        """
        self.cluster, self.run, self.disk, self.clock, self.words = cluster, run, disk, clock, words
        self.victim, self.moment = "", 0.0
        """Target and time of the last fault."""

    def note(self, victim: str) -> None:
        self.victim, self.moment = victim, time.time()

    @property
    def hosts(self) -> list[str]:
        """Nodes of the newest attempt that has any, the head first."""
        passed = [row for row in read_rows(self.run.run_dir.events) if row["kind"] == "preflight/passed"]
        if not passed:
            raise Missed("no attempt has nodes yet")
        return list(passed[-1]["nodes"])

    @property
    def head(self) -> str:
        return self.hosts[0]

    def find_batch_host(self) -> str:
        """Return the controller's node; "" if the job is pending."""
        return self.cluster.run(["squeue", "-h", "-t", "R", "-j", self.run.job, "-o", "%B"]).stdout.strip()

    def is_queued(self) -> bool:
        """Return whether the job is still in Slurm's queue, or Slurm does not answer."""
        done = self.cluster.run(["squeue", "-h", "-j", self.run.job, "-o", "%T"])
        return bool(done.returncode or done.stdout.strip())

    def controllers(self) -> str:
        if host := self.find_batch_host():
            return host
        raise Missed("the job does not run")

    def find_down(self) -> list[str]:
        """Return the nodes that Slurm has marked down."""
        rows = self.cluster.run(["sinfo", "-h", "-N", "-p", "main", "-o", "%N %t"]).stdout.splitlines()
        return [row.split()[0] for row in rows if row.split()[1].startswith("down")]

    def serve(self) -> None:
        """Act as the site's operator: return drained nodes that are on to service."""
        rows = self.cluster.run(["sinfo", "-h", "-N", "-p", "main", "-t", "drained", "-o", "%N"]).stdout.split()
        for host in sorted(set(rows)):
            self.cluster.run(["scontrol", "update", f"nodename={host}", "state=resume"])

    def find(self, host: str, target: str) -> list[int]:
        """Return the pids of the run's processes of this kind on `host`, oldest first."""
        found: list[int] = []

        def is_there() -> bool:
            with contextlib.suppress(ClusterError):  # the node is off
                those = self.cluster.processes(host)
                found[:] = sorted(
                    p.pid for p in those if self.words[target] in p.cmdline and self.run.is_ours(p.cmdline)
                )
            return bool(found)

        try:
            wait_until(is_there, target, timeout_s=_FIND_S, every_s=0.2)
        except TimeoutError:
            raise Missed(f"no {target} on {host}") from None
        self.note(f"{target} on {host}")
        return found

    def signal(self, host: str, pids: Sequence[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ClusterError, ProcessLookupError):  # ended meanwhile
                self.cluster.signal(host, pid, number)

    def plug(self, host: str, *, out: bool) -> None:
        link = f"{self.cluster.slot.namespace(host)}-v"
        subprocess.run(["ip", "link", "set", link, "down" if out else "up"], check=True)

    def cut(self, host: str, peer: str | None) -> Callable[[], None]:
        """Cut a node off from another node or from slurmctld's machine; return a function that undoes it."""
        here = [] if peer else ["dev", self.cluster.slot.bridge]
        ends = [
            (host, self.cluster.ip(peer) if peer else self.cluster.slot.controller_ip, ["dev", "eth0"]),
            (peer, self.cluster.ip(host), here or ["dev", "eth0"]),
        ]

        def do(*words: str) -> None:
            for node, ip, device in ends:
                tail = ["lladdr", _NOWHERE, "nud", "permanent"] if words == ("replace",) else []
                with contextlib.suppress(ClusterError):  # it is off, and reboots without the rule
                    self.cluster.run(["ip", "neigh", *words, ip, *tail, *device], node=node)

        self.note(f"{host} and {peer or 'slurmctld'}")
        do("replace")
        return lambda: do("del")
