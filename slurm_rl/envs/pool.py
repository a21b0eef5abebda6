"""Environments in processes of their own: a batch of replies in, what came of each out, in bounded time.

    with EnvironmentPool(config.env) as pool:
        outcomes = pool.play([Call(...), ...])     # a Step or a Failure each, in order
        pool.forget()                              # the batch's episodes are over

An episode stays in one process. A process tells when a step begins and when it ends, so that of one that died or says
nothing for `env.timeout_s` it is known which steps were under way: one alone is to blame and has failed; of several
each is tried again by itself. All others go to a new process, where an environment is brought back by its replies.
"""

from __future__ import annotations

import multiprocessing
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.envs import worker
from slurm_rl.envs.worker import Call, Outcome
from slurm_rl.errors import ConfigError, RewardError
from slurm_rl.rewards.results import Failure

_GRACE_S = 1.0
"""A step that awaits ends itself at its deadline, and then says so."""
_END_S = 10.0


@dataclass
class _Process:
    """A process, and what it was asked for."""

    process: BaseProcess
    connection: Connection
    places: list[int] = field(default_factory=list)
    """Of the calls of the batch under way."""
    begun: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    heard_at: float = 0.0

    @property
    def open(self) -> list[int]:
        return [place for place in self.places if place not in self.ended]

    def ask(self, calls: Sequence[Call], places: list[int]) -> None:
        self.places, self.begun, self.ended, self.heard_at = places, set(), set(), time.monotonic()
        self.connection.send([calls[place] for place in places])

    def end(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join(_END_S)


class EnvironmentPool:
    """`env.num_workers` processes that hold environments; a context manager."""

    def __init__(self, config: EnvironmentConfig) -> None:
        assert config.name is not None
        self.config, self.spec = config, config.name
        self._processes: list[_Process] = []
        self._replays = True
        # Not forked off this one: the trainer has threads and perhaps a GPU context, and neither survives a fork.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["slurm_rl.envs.worker"])

    def __enter__(self) -> EnvironmentPool:
        """Start the processes.

        Raises:
            ConfigError: the user's file cannot be run; RewardError: they are not up within `env.start_timeout_s`.
        """
        try:
            self._processes = [self._start() for _ in range(self.config.num_workers)]
            for process in self._processes:
                self._greet(process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.end()
        self._processes = []

    def forget(self) -> None:
        """No call of the episodes so far will come again."""
        for process in self._processes:
            process.connection.send(None)

    def play(self, calls: Sequence[Call]) -> list[Outcome]:
        """What came of each call, in order. An environment that misbehaves costs its own call alone."""
        outcomes: dict[int, Outcome] = {}
        # By name, not by turn: an episode finds its world where it left it.
        shares: list[list[int]] = [[] for _ in self._processes]
        for place, call in enumerate(calls):
            shares[zlib.crc32(call.episode.encode()) % len(shares)].append(place)
        waiting = [[share] if share else [] for share in shares]
        while len(outcomes) < len(calls):
            for process, parts in zip(self._processes, waiting, strict=True):
                if parts and not process.open:
                    process.ask(calls, parts.pop(0))
            self._listen(outcomes)
            for index, process in enumerate(self._processes):
                if process.open and (cause := self._find_end(process)):
                    waiting[index] = [*self._blame(index, cause, outcomes), *waiting[index]]
        return [outcomes[place] for place in range(len(calls))]

    def _listen(self, outcomes: dict[int, Outcome]) -> None:
        by_connection = {process.connection: process for process in self._processes if process.open}
        for connection in wait(list(by_connection), timeout=_GRACE_S / 2):
            process = by_connection[connection]  # type: ignore[index]
            try:
                while process.connection.poll():
                    index, outcome = process.connection.recv()
                    process.heard_at, place = time.monotonic(), process.places[index]
                    if outcome is None:
                        process.begun.add(place)
                    else:
                        process.ended.add(place)
                        outcomes[place] = outcome
            except (EOFError, OSError):
                process.heard_at = float("-inf")

    def _find_end(self, process: _Process) -> Failure | None:
        """What became of a process that answers no more; None of one that is alive and well."""
        if process.heard_at == float("-inf"):
            process.process.join(_END_S)
            return Failure("crash", f"the process died with exit code {process.process.exitcode}")
        if time.monotonic() - process.heard_at > self.config.timeout_s + _GRACE_S:
            return Failure("hang", f"no step within {self.config.timeout_s:g} s")
        return None

    def _blame(self, index: int, cause: Failure, outcomes: dict[int, Outcome]) -> list[list[int]]:
        """Replace a process; returns what the new one is to be asked for, in parts."""
        process = self._processes[index]
        left, suspects = process.open, [place for place in process.open if place in process.begun]
        process.end()
        self._processes[index] = self._start()
        self._greet(self._processes[index])
        if not self._replays:
            suspects, left = left, []
            outcomes |= dict.fromkeys(suspects, cause)
            return []
        if len(suspects) <= 1:
            guilty = suspects or left[:1]
            outcomes |= dict.fromkeys(guilty, cause)
            suspects = []
            left = [place for place in left if place not in guilty]
        others = [place for place in left if place not in suspects]
        return [*([others] if others else []), *([place] for place in suspects)]

    def _start(self) -> _Process:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=worker.serve, args=(theirs, self.spec, self.config.timeout_s), daemon=True, name="environments"
        )
        process.start()
        theirs.close()
        return _Process(process, ours)

    def _greet(self, process: _Process) -> None:
        """Wait until it has imported the user's file."""
        limit_s = self.config.start_timeout_s
        try:
            answer: Any = process.connection.recv() if process.connection.poll(limit_s) else "late"
        except (EOFError, OSError):
            answer = f"it died with exit code {process.process.exitcode}"
        if answer == "late":
            raise RewardError(
                f"a process for environments must be up within {limit_s:g} s (env.start_timeout_s)",
                seen=f"nothing of {self.spec}",
                action="see what the file does as it is imported, or raise the deadline",
            )
        if isinstance(answer, str):
            raise ConfigError("env.name must be a file that runs", seen=f"{self.spec}: {answer}", action="mend it")
        self._replays = bool(answer["replays"])
