"""The agents of one attempt on all machines, to the controller what srun is to it on Slurm.

They meet by a few small files, which are carried between machines that share no folder. Down to the others: where the
head listens, that it has ended, that a node died. Up to the head: each agent's record, and its events.
"""

from __future__ import annotations

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

# As Slurm's KillWait: from SIGTERM to SIGKILL.
_KILL_WAIT_S = 30.0
# Agents that leave because the head's has ended do so within seconds.
_FOLLOW_S = 60.0


class MachineNodes:
    """Started once all members are there; it has the part of Popen's interface that the controller uses.

    One agent's bad end ends the others, as srun's --kill-on-bad-exit does.
    """

    def __init__(self, hub: Hub, run: RunDir, plan: JobPlan, attempt: AttemptDir, env: Mapping[str, str]) -> None:
        self._hub, self._run_dir, self._plan, self._attempt = hub, run, plan, attempt
        self._outbox = Outbox(files_for_all(attempt))
        self.returncode: int = 1
        self.lost: list[str] = []
        """Nodes whose machine went away."""
        self._ends: dict[int, int] = {}
        self._kill_at = self._ended_at = 0.0
        peers = [member.link.peer for _, member in sorted(hub.members.items())]
        # The head as the last of them reaches it.
        self.hosts = [own_address(peers[-1] if peers else "localhost"), *peers]
        self._local = start_agent(plan, attempt, 0, self.hosts, hub.job_key, env)
        for member in hub.members.values():
            member.inbox.clear()
        hub.broadcast("start", attempt=attempt.number, hosts=self.hosts)

    def poll(self) -> int | None:
        """None while an agent runs; afterwards the highest of their exit statuses."""
        self._hub.poll()
        for rank, member in self._hub.members.items():
            self._take_news(rank, member)
        self._tell_news()
        self._look_for_bad_ends()
        status = self._local.poll()
        if status is not None:
            if 0 not in self._ends:
                settle_silent_agent(self._plan, self._attempt, 0, self.hosts[0], self._attempt.log("node-0"), status)
            self._ends[0] = status
            self._ended_at = self._ended_at or time.monotonic()
        if self._kill_at and time.monotonic() > self._kill_at:
            self.send_signal(signal.SIGKILL)
        # Who hangs now is left behind: it is told with the next attempt, or with the end of the run.
        late = self._ended_at and time.monotonic() > self._ended_at + _FOLLOW_S
        if 0 not in self._ends or (len(self._ends) < self._plan.num_nodes and not late):
            return None
        self.returncode = max(abs(end) for end in self._ends.values())
        return self.returncode

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def send_signal(self, sig: int, /) -> None:
        """To every agent."""
        if self._local.poll() is None:
            self._local.send_signal(sig)
        self._hub.broadcast("signal", number=int(sig))

    def _take_news(self, rank: int, member: Member) -> None:
        for message in member.inbox:
            if message["kind"] == "record":
                take_file(self._attempt, message["name"], message["content"], [self._attempt.node(rank)])
            elif message["kind"] == "event":
                append_row(self._run_dir, self._run_dir.events, message["row"])
            elif message["attempt"] == self._attempt.number:
                self._ends[rank] = int(message["status"])
        member.inbox.clear()

    def _tell_news(self) -> None:
        if all(member.shares_run_dir for member in self._hub.members.values()):
            return
        for name, content in self._outbox.news():
            for member in self._hub.members.values():
                if not member.shares_run_dir:
                    member.link.send("file", attempt=self._attempt.number, name=name, content=content)

    def _look_for_bad_ends(self) -> None:
        for rank, host in self._hub.lost.items():
            if rank not in self._ends:
                self._ends[rank] = 1
                self.lost.append(f"node {rank} ({host})")
                self._end_others(f"node {rank} ({host}) is gone")
        for rank, status in self._ends.items():
            if status and not self._kill_at:
                self._end_others(f"the agent of node {rank} ended with exit status {status}")

    def _end_others(self, cause: str) -> None:
        if self._kill_at:
            return
        self._kill_at = time.monotonic() + _KILL_WAIT_S
        if read_record(self._attempt, 0).get("state") not in ("ending", "ended"):
            write_json(self._attempt.abort, {"cause": cause})
            append_event(self._run_dir, "node/died", attempt=self._attempt.number, cause=cause)
        self._tell_news()
        self.send_signal(signal.SIGTERM)


def files_for_all(attempt: AttemptDir) -> list[Path]:
    """What the agents of other nodes look for."""
    return [attempt.head, attempt.node(0), attempt.abort]


class Outbox:
    """Files whose newest contents are to be told once."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self._told: dict[Path, Any] = {}

    def news(self) -> Iterator[tuple[str, Any]]:
        """Name and contents of each file that has changed since the last call."""
        for path in self._paths:
            if not path.is_file():
                continue
            content = read_json(path)
            if self._told.get(path) != content:
                self._told[path] = content
                yield path.name, content


def take_file(attempt: AttemptDir, name: str, content: Any, allowed: list[Path]) -> None:
    """Write a file that came, if it is one of those that may."""
    path = attempt.path / name
    if path in allowed:
        write_json(path, content)
