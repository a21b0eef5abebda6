"""Head of a run over machines: accepts the other machines, assigns ranks, and detects lost ones.

There are no threads, and nothing blocks: a waiting caller calls `poll`.
"""

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from slurm_rl import __version__
from slurm_rl.errors import BringUpError, ConfigError, SlurmRLError
from slurm_rl.launch.machines.link import Link, LinkClosed, WrongSecret
from slurm_rl.launch.machines.place import HeadPlace, find_difference, listen
from slurm_rl.run_dir.run_dir import RunDir, append_event

_POLL_S = 0.05
BEAT_S = 5.0
SILENCE_S = 60.0
"""Seconds of silence after which a machine counts as lost."""
_PROOF_S = 20.0
_GOODBYE_S = 5.0


class _StillHere(ConfigError):
    """The former connection of the machine is still open, or it was started twice."""


@dataclass(eq=False)
class Member:
    """Another machine, or a connection that has not authenticated."""

    link: Link
    came_at: float
    heard_at: float
    rank: int = -1
    name: str = ""
    is_ready: bool = False
    shares_run_dir: bool = False
    inbox: list[dict[str, Any]] = field(default_factory=list)
    """Messages for the attempt."""

    @property
    def host(self) -> str:
        return f"{self.name} ({self.link.peer})" if self.name != self.link.peer else self.name


class Hub:
    """All other machines of a run.

    Args:
        num_nodes: nodes of the run, including the head.
        config: config of the run, which the others must share.
    """

    def __init__(
        self, run: RunDir, num_nodes: int, place: HeadPlace, secret: str, job_key: str, config: dict[str, Any]
    ) -> None:
        self.run_dir, self.num_nodes, self.job_key, self.config = run, num_nodes, job_key, config
        self._place, self._secret = place, secret
        self._listener: socket.socket | None = None
        self._pending: list[Member] = []
        """Unauthenticated connections, oldest first."""
        self.members: dict[int, Member] = {}
        self.lost: dict[int, str] = {}
        """Rank -> name of its lost machine, until another takes the rank."""
        self.notice: str | None = None
        """Machine that received a stop signal, and the signal."""
        self._beat_at = 0.0
        self._rejected: set[tuple[str, str]] = set()
        """Kind and address of rejected connections; each is logged once."""

    def open(self) -> None:
        """Listen; no-op if it listens already. Raises ConfigError if the port is taken."""
        if self._listener is None:
            self._listener = listen(self._place.port)
            self._listener.setblocking(False)

    # ---- members ---------------------------------------------------------------------------------

    def wait_for_all(self, timeout_s: float, is_stopped: Callable[[], bool]) -> None:
        """Wait until all machines of the run are ready. Raises BringUpError with the missing ones at the deadline."""
        deadline = time.monotonic() + timeout_s
        while missing := self.missing():
            if is_stopped():
                return
            if time.monotonic() > deadline:
                joined = ", ".join(f"{m.host} as node {rank}" for rank, m in sorted(self.members.items())) or "none"
                raise BringUpError(
                    f"all {self.num_nodes} nodes must join the head within job.start_timeout_s ({timeout_s:g} s)",
                    seen=f"missing: {', '.join(missing)}; joined: {joined}",
                    action="start `python -m slurm_rl join` there too, and check its output",
                )
            self.poll()
            time.sleep(_POLL_S)

    def missing(self) -> list[str]:
        """Return the nodes that are not ready, with their names if known."""
        ready = {rank for rank, member in self.members.items() if member.is_ready}
        return [self._describe(rank) for rank in range(1, self.num_nodes) if rank not in ready]

    def _describe(self, rank: int) -> str:
        name = self.lost.get(rank) or (self._place.hosts[rank] if rank < len(self._place.hosts) else "")
        return f"node {rank} ({name})" if name else f"node {rank}"

    # ---- messages --------------------------------------------------------------------------------

    def poll(self) -> None:
        """Accept connections, read messages, send queued ones."""
        self._accept()
        now = time.monotonic()
        if now > self._beat_at + BEAT_S:
            self._beat_at = now
            self.broadcast("beat")
        for member in [*self._pending, *self.members.values()]:
            self._receive(member)

    def broadcast(self, kind: str, **fields: Any) -> None:
        for member in self.members.values():
            member.link.send(kind, **fields)

    def say_goodbye(self, **fields: Any) -> None:
        """Send the end of the run to all machines, and close."""
        self.broadcast("end", **fields)
        deadline = time.monotonic() + _GOODBYE_S
        while any(member.link.has_unsent for member in self.members.values()) and time.monotonic() < deadline:
            self.poll()
            time.sleep(_POLL_S)
        for member in [*self.members.values(), *self._pending]:
            member.link.close()
        if self._listener is not None:
            self._listener.close()

    def _accept(self) -> None:
        while self._listener is not None:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # none left
                return
            try:
                link = Link(sock, self._secret, is_head=True)
            except OSError:  # the peer has already closed it
                sock.close()
                continue
            now = time.monotonic()
            self._pending.append(Member(link, now, now))

    def _receive(self, member: Member) -> None:
        now = time.monotonic()
        try:
            messages = member.link.poll()
        except (LinkClosed, WrongSecret) as error:
            return self._drop(member, str(error))
        member.heard_at = now if messages else member.heard_at
        for message in messages:
            self._handle(member, message)
        if member in self._pending and now > member.came_at + _PROOF_S:
            self._drop(member, "did not identify itself")
        elif now > member.heard_at + SILENCE_S:
            self._drop(member, f"was silent for {SILENCE_S:g} s")
        return None

    def _handle(self, member: Member, message: dict[str, Any]) -> None:
        kind = message["kind"]
        # The greeting comes once, before all other messages.
        if (kind == "hello") != (member in self._pending):
            return
        if kind == "hello":
            self._greet(member, message)
        elif kind == "ready":
            member.is_ready, member.shares_run_dir = True, message["shares_run_dir"]
            self.lost.pop(member.rank, None)
            self._report("node/joined", member, shares_run_dir=member.shares_run_dir)
        elif kind == "notice":
            self.notice = f"node {member.rank} ({member.host}) received a stop signal ({message['signal']})"
            self._report("node/notice", member, signal=message["signal"])
        elif kind in ("record", "event", "exited"):
            member.inbox.append(message)

    def _report(self, kind: str, member: Member, **fields: Any) -> None:
        append_event(self.run_dir, kind, rank=member.rank, host=member.host, **fields)

    def _drop(self, member: Member, cause: str) -> None:
        member.link.close()
        if member in self._pending:
            self._pending.remove(member)
            self._reject("node/turned_away", address=member.link.peer, cause=cause)
        elif self.members.get(member.rank) is member:
            del self.members[member.rank]
            self.lost[member.rank] = member.host
            self._report("node/left", member, cause=cause)

    def _reject(self, kind: str, **fields: str) -> None:
        # A cause may contain bytes of the peer, so only the address counts.
        place = (kind, fields.get("address") or fields["host"])
        if place not in self._rejected:
            self._rejected.add(place)
            append_event(self.run_dir, kind, **fields)

    # ---- new members -----------------------------------------------------------------------------

    def _greet(self, member: Member, hello: dict[str, Any]) -> None:
        member.name = str(hello["name"])
        try:
            self._check(hello)
            member.rank = self._find_rank(hello["rank"], member)
        except SlurmRLError as error:
            member.link.send("refused", cause=str(error), is_final=not isinstance(error, _StillHere))
            with contextlib.suppress(SlurmRLError):
                member.link.poll()
            # It closes the connection after reading that.
            self._reject("node/refused", host=member.host, cause=str(error))
            return
        self._pending.remove(member)
        self.members[member.rank] = member
        member.link.send(
            "welcome",
            rank=member.rank,
            num_nodes=self.num_nodes,
            run_dir=str(self.run_dir.path),
            job_key=self.job_key,
            word=self._place.word,
        )

    def _check(self, hello: dict[str, Any]) -> None:
        if hello["version"] != __version__:
            seen = f"{hello['version']}, {__version__}"
            raise ConfigError("all machines must have the same version of slurm_rl", seen=seen)
        if (size := hello["num_nodes"]) is not None and size != self.num_nodes:
            seen = f"{size}, on the head {self.num_nodes}"
            raise ConfigError("all machines must agree on the number of nodes", seen=seen)
        if difference := find_difference(self.config, hello["config"]):
            action = "start `join` with the head's overrides"
            raise ConfigError("the command line must be the same on every machine", seen=difference, action=action)

    def _find_rank(self, wanted: int | None, member: Member) -> int:
        """Return its requested rank; otherwise its former rank, or the lowest free one."""
        if any(other.host == member.host for other in self.members.values()):
            raise _StillHere("a machine joins once", seen=f"{member.host} is connected already")
        free = [rank for rank in range(1, self.num_nodes) if rank not in self.members]
        if wanted is not None and wanted not in free:
            has_it = self.members.get(wanted)
            seen = f"node {wanted} is {has_it.host}" if has_it else f"node {wanted} of {self.num_nodes}"
            raise ConfigError("every node needs its own rank: 0 for the head, 1 and up for the others", seen=seen)
        if not free:
            raise ConfigError(
                f"the run already has all of its {self.num_nodes} nodes",
                seen=f"one more: {member.host}",
                action="raise EXPECTED_WORKERS (--nodes) on the head, or leave this machine out",
            )
        had = [rank for rank in free if self.lost.get(rank) == member.host]
        return wanted if wanted is not None else (had or free)[0]
