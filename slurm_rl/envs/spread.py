"""Environments on several nodes behind one interface.

    submit --> by episode, to its node --> one thread per node sends batches
    listen <-- one queue               <-- one thread per node waits for answers

An episode stays on its node. Episodes of a lost node move to the others, which restore their environments.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slurm_rl.envs.environments import Environments
from slurm_rl.envs.steps import Answer
from slurm_rl.envs.worker import Call
from slurm_rl.errors import SlurmRLError
from slurm_rl.rewards.results import Failure

_END_S = 30.0


class HostLost(SlurmRLError):
    """The environments of a node do not answer."""


class Host(Protocol):
    """Environments of one node. Methods raise HostLost, or the error that ends the run."""

    name: str
    num_workers: int

    def submit(self, calls: Sequence[Call], gone: Sequence[str]) -> None:
        """Submit calls and release the episodes `gone`; returns after delivery."""

    def listen(self) -> list[Answer]:
        """Return available answers; waits some seconds for the first."""


@dataclass(eq=False)
class _Node:
    host: Host
    open: dict[str, Call] = field(default_factory=dict)
    outbox: queue.SimpleQueue[list[Call | str] | None] = field(default_factory=queue.SimpleQueue)
    """Calls, and names of episodes to be forgotten."""


class SpreadEnvironments(Environments):
    """Context manager over running hosts; the caller stops them.

    Args:
        hosts: the first is never lost.
        like: declarations and tools of the class.
        report: called with an event and its fields.
    """

    def __init__(self, hosts: Sequence[Host], like: Environments, report: Callable[..., None]) -> None:
        super().__init__(like.schemas)
        self.facts = like.facts
        self._nodes, self.report = [_Node(host) for host in hosts], report
        self._homes: dict[str, _Node] = {}
        self._answers: queue.SimpleQueue[list[Answer] | BaseException] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> SpreadEnvironments:
        for node in self._nodes:
            for loop in (self._send, self._take):
                self._threads.append(threading.Thread(target=loop, args=(node,), name="environment-node", daemon=True))
                self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True
        for node in self._nodes:
            node.outbox.put(None)

    def join(self) -> None:
        """Wait for the threads, after the hosts were closed."""
        for thread in self._threads:
            thread.join(_END_S)

    def submit(self, calls: Sequence[Call]) -> None:
        shares: dict[_Node, list[Call | str]] = defaultdict(list)
        with self._lock:
            for call in calls:
                node = self._homes.get(call.episode) or self._choose(call.episode)
                node.open[call.episode] = call
                shares[node].append(call)
            for node, share in shares.items():
                node.outbox.put(share)

    def forget(self, episodes: Sequence[str]) -> None:
        shares: dict[_Node, list[Call | str]] = defaultdict(list)
        with self._lock:
            for episode in episodes:
                if (node := self._homes.pop(episode, None)) is not None:
                    shares[node].append(episode)
            for node, share in shares.items():
                node.outbox.put(share)

    def listen(self, timeout_s: float) -> list[Answer]:
        with contextlib.suppress(queue.Empty):
            found = self._answers.get(timeout=timeout_s)
            if isinstance(found, BaseException):
                raise found
            return found
        return []

    def _choose(self, episode: str) -> _Node:
        """Assign an episode by name, in proportion to the processes of the nodes."""
        places = [node for node in self._nodes for _ in range(node.host.num_workers)]
        node = places[zlib.crc32(episode.encode()) % len(places)]
        self._homes[episode] = node
        return node

    def _send(self, node: _Node) -> None:
        parts: list[list[Call | str] | None] = []
        while None not in parts:
            parts = [node.outbox.get()]
            while not node.outbox.empty():
                parts.append(node.outbox.get())
            gathered = [one for part in parts if part is not None for one in part]
            calls = [one for one in gathered if isinstance(one, Call)]
            gone = [one for one in gathered if isinstance(one, str)]
            try:
                if gathered and not self.is_closed:
                    node.host.submit(calls, gone)
            except BaseException as error:
                self._end(node, error)
                return

    def _take(self, node: _Node) -> None:
        while not self.is_closed:
            try:
                answers = node.host.listen()
            except BaseException as error:
                self._end(node, error)
                return
            with self._lock:
                # Another node has the calls of a lost one.
                known = [answer for answer in answers if node.open.pop(answer.episode, None) is not None]
                for answer in known:
                    if isinstance(answer.outcome, Failure) or answer.outcome.done:
                        self._homes.pop(answer.episode, None)
            if known:
                self._answers.put(known)

    def _end(self, node: _Node, error: BaseException) -> None:
        """Move the episodes of a lost node to the others, or pass the error to the listener."""
        if self.is_closed:
            return
        if not isinstance(error, HostLost):
            self._answers.put(error)
            return
        with self._lock:
            if node not in self._nodes:
                return  # the other thread of it was first
            self._nodes.remove(node)
            node.outbox.put(None)
            left, node.open = [*node.open.values()], {}
            worlds = [episode for episode, home in self._homes.items() if home is node]
            for episode in worlds:
                del self._homes[episode]
        self.report("environments/node_lost", node=node.host.name, episodes=len(worlds), cause=str(error))
        if self.facts.resume != "restart":
            self.submit(left)
        elif left:
            self._answers.put([Answer(call.episode, Failure("crash", f"its node is lost: {error}")) for call in left])
