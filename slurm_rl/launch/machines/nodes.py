"""The agents of one attempt on all machines; the counterpart of srun on Slurm.

The agents communicate through a few small files, which are copied between machines without a shared folder. From the
head to the workers: address of the head, end of the head's agent, death of a node. To the head: records and events.
"""

import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slurm_rl.launch.controller.agents import settle_silent_agent, start_agent
from slurm_rl.launch.controller.ends import read_record
from slurm_rl.launch.machines.hub import Hub, Member
from slurm_rl.node.rendezvous import own_address
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, append_row, read_json, write_json

# From SIGTERM to SIGKILL; the same as Slurm's KillWait.
_KILL_WAIT_S = 30.0
# After the end of the head's agent, the other agents leave within seconds.
_FOLLOW_S = 60.0


class MachineNodes:
    """All agents of an attempt, as `Nodes`. The failure of one ends the others, as with srun --kill-on-bad-exit."""

    def __init__(self, hub: Hub, run: RunDir, plan: JobPlan, attempt: AttemptDir, env: Mapping[str, str]) -> None:
        self._hub, self._run_dir, self._plan, self._attempt = hub, run, plan, attempt
        self._outbox = Outbox(files_for_all(attempt))
        self.returncode: int = 1
        self.lost: list[str] = []
        """Nodes with a disconnected machine."""
        self._ends: dict[int, int] = {}
        self._kill_at = self._ended_at = 0.0
        peers = [member.link.peer for _, member in sorted(hub.members.items())]
        # Address of the head as seen from the last peer.
        self.hosts = [own_address(peers[-1] if peers else "localhost"), *peers]
        self._local = start_agent(plan, attempt, 0, self.hosts, hub.job_key, env)
        for member in hub.members.values():
            member.inbox.clear()
        hub.broadcast("start", attempt=attempt.number, hosts=self.hosts)

    def poll(self) -> int | None:
        self._hub.poll()
        for rank, member in self._hub.members.items():
            self._receive_news(rank, member)
        self._send_news()
        self._check_for_failures()
        if (status := self._local.poll()) is not None and 0 not in self._ends:
            settle_silent_agent(self._plan, self._attempt, 0, self.hosts[0], self._attempt.log("node-0"), status)
            self._ends[0], self._ended_at = status, time.monotonic()
        if self._kill_at and time.monotonic() > self._kill_at:
            self.send_signal(signal.SIGKILL)
        # Do not wait for an agent that hangs: its machine hears of the next attempt, or of the end of the run.
        late = self._ended_at and time.monotonic() > self._ended_at + _FOLLOW_S
        if 0 not in self._ends or (len(self._ends) < self._plan.num_nodes and not late):
            return None
        self.returncode = max(abs(end) for end in self._ends.values())
        return self.returncode

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def send_signal(self, sig: int, /) -> None:
        if self._local.poll() is None:
            self._local.send_signal(sig)
        self._hub.broadcast("signal", number=int(sig))

    def _receive_news(self, rank: int, member: Member) -> None:
        for message in member.inbox:
            if message["kind"] == "record":
                take_file(self._attempt, message["name"], message["content"], [self._attempt.node(rank)])
            elif message["kind"] == "event":
                append_row(self._run_dir, self._run_dir.events, message["row"])
            elif message["attempt"] == self._attempt.number:
                self._ends[rank] = int(message["status"])
        member.inbox.clear()

    def _send_news(self) -> None:
        members = [member for member in self._hub.members.values() if not member.shares_run_dir]
        for name, content in self._outbox.news() if members else ():
            for member in members:
                member.link.send("file", attempt=self._attempt.number, name=name, content=content)

    def _check_for_failures(self) -> None:
        for rank, host in self._hub.lost.items():
            if rank not in self._ends:
                self._ends[rank] = 1
                self.lost.append(f"node {rank} ({host})")
                self._end_others(f"node {rank} ({host}) is lost")
        for rank, status in self._ends.items():
            if status:
                self._end_others(f"the agent of node {rank} ended with exit status {status}")

    def _end_others(self, cause: str) -> None:
        if self._kill_at:
            return
        self._kill_at = time.monotonic() + _KILL_WAIT_S
        if read_record(self._attempt, 0).get("state") not in ("ending", "ended"):
            write_json(self._attempt.abort, {"cause": cause})
            append_event(self._run_dir, "node/died", attempt=self._attempt.number, cause=cause)
        self._send_news()
        self.send_signal(signal.SIGTERM)


def files_for_all(attempt: AttemptDir) -> list[Path]:
    """Return the files that the agents of other nodes wait for."""
    return [attempt.head, attempt.node(0), attempt.abort]


class Outbox:
    """Sends the newest content of files once."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self._sent: dict[Path, Any] = {}

    def news(self) -> Iterator[tuple[str, Any]]:
        """Yield name and content of each file that has changed since the last call."""
        for path in filter(Path.is_file, self._paths):
            content = read_json(path)
            if self._sent.get(path) != content:
                self._sent[path] = content
                yield path.name, content


def take_file(attempt: AttemptDir, name: str, content: Any, allowed: list[Path]) -> None:
    """Write a received file if its path is in `allowed`."""
    if (path := attempt.path / name) in allowed:
        write_json(path, content)
