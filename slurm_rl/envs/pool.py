"""Environments in separate processes: calls in, answers out, in bounded time.

    with EnvironmentPool(config.env) as pool:
        answers = pool.ask([Call(...), ...])       # in order, after all were answered; or
        pool.submit([Call(...), ...])              # from any thread
        answers = pool.listen(1.0)                 # available answers, in one thread
        pool.forget(["12.0.1", ...])               # episodes that ended

An episode stays in one process. If a process dies or is silent for `env.timeout_s`, its started steps are known: a
single hanging step fails; otherwise each is retried by itself, and a step that kills its process again fails. The
other episodes move to a new process, where their environments are restored.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import threading
import time
import zlib
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.envs import worker
from slurm_rl.envs.environments import Environments
from slurm_rl.envs.facts import Facts, Refused
from slurm_rl.envs.steps import Answer, Said, decode
from slurm_rl.envs.worker import Call
from slurm_rl.envs.worker_process import WorkerProcess
from slurm_rl.errors import ConfigError, RewardError
from slurm_rl.rewards.results import Failure
from slurm_rl.rewards.values import describe_error
from slurm_rl.run_dir.wire import Wire

_LOOK_S = 0.5
_WAKES_BYTES = 4096


class EnvironmentPool(Environments):
    """`env.num_workers` processes of this node; a context manager."""

    def __init__(self, config: EnvironmentConfig, schemas: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(schemas)
        self.config, self.spec = config, config.name or config.tools
        self._processes: list[WorkerProcess] = []
        self._submitted: deque[list[Call]] = deque()
        self._forgotten: deque[str] = deque()
        self._wakes, self._woken = socket.socketpair()
        self._wakes.setblocking(False)
        self._looked_at = 0.0
        self._lock = threading.Lock()
        # Not forked off this one: the trainer has threads and perhaps a GPU context, and neither survives a fork.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["slurm_rl.envs.worker"])

    def __enter__(self) -> EnvironmentPool:
        """Start the processes; raise ConfigError if the user's file cannot be run, RewardError if they are not up in
        time."""
        try:
            for _ in range(self.config.num_workers):
                self._processes.append(self._start())
            for process in self._processes:
                self._greet(process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True
        self._wake()
        with self._lock:
            for process in self._processes:
                process.end()
            self._processes = []
            self._wakes.close()
            self._woken.close()

    def _wake(self) -> None:
        """Wake the listening thread; one pending byte is enough."""
        with contextlib.suppress(OSError):
            self._wakes.send(b"x")

    def forget(self, episodes: Sequence[str]) -> None:
        self._forgotten.extend(episodes)

    def submit(self, calls: Sequence[Call]) -> None:
        if not calls:
            return
        self._submitted.append(list(calls))
        if self._lock.acquire(blocking=False):  # no thread is listening, so send now
            try:
                if not self.is_closed:
                    self._share_out()
            finally:
                self._lock.release()
        else:
            self._wake()

    def listen(self, timeout_s: float) -> list[Answer]:
        with self._lock:
            return [] if self.is_closed else self._listen(timeout_s)

    def _listen(self, timeout_s: float) -> list[Answer]:
        self._share_out()
        by_number = {process.wire.fileno(): process for process in self._processes}
        # A surviving child keeps the connection open: only the sentinel shows that the process has ended.
        sentinels = {process.process.sentinel: process for process in self._processes}
        found: list[Answer] = []
        for number in wait([*by_number, *sentinels, self._woken.fileno()], timeout=min(timeout_s, _LOOK_S)):
            if number == self._woken.fileno():
                self._woken.recv(_WAKES_BYTES)
            elif number in sentinels:
                found += sentinels[number].read_last()
            else:
                found += by_number[number].read()  # type: ignore[index]
        self._share_out()
        is_due = (now := time.monotonic()) > self._looked_at + _LOOK_S / 2
        if is_due or any(process.is_gone for process in self._processes):
            self._looked_at = now
            for index, process in enumerate(self._processes):
                if not process.is_gone:
                    process.look()
                if (process.open or process.is_gone) and (cause := process.find_end(self.config.timeout_s)):
                    found += self._blame(index, cause)
        for process in self._processes:
            process.go_on()
        return found

    def _share_out(self) -> None:
        if not (self._submitted or self._forgotten):
            return
        shares: list[list[Call]] = [[] for _ in self._processes]
        while self._submitted:
            # By name, so that an episode stays in its process.
            for call in self._submitted.popleft():
                shares[self._place(call.episode)].append(call)
        gone: list[list[str]] = [[] for _ in self._processes]
        while self._forgotten:
            episode = self._forgotten.popleft()
            gone[self._place(episode)].append(episode)
        for process, share, names in zip(self._processes, shares, gone, strict=True):
            if names := [name for name in names if name in process.holds]:
                process.holds.difference_update(names)
                process.outbox.put(names)
            if share:
                process.submit(share)

    def _place(self, episode: str) -> int:
        return zlib.crc32(episode.encode()) % len(self._processes)

    def _blame(self, index: int, cause: Failure) -> list[Answer]:
        """Replace a process: resubmit its open calls to the new one and answer the failed ones."""
        old = self._processes[index]
        left, suspects = [call for _, call in old.open.values()], old.begun()
        old.end()
        self._processes[index] = fresh = self._start()
        self._greet(fresh)
        if self.facts.resume == "restart":
            guilty, suspects, left = left, [], []
        else:
            suspects = suspects or left[:1]
            is_sure = cause.cause == "hang" or any(call.episode in old.suspected for call in suspects)
            guilty = suspects if len(suspects) == 1 and is_sure else []
        again = [] if guilty else suspects
        fresh.suspected = (old.suspected | _names(again)) - _names(guilty)
        apart = _names(again) | _names(guilty)
        others = [call for call in left if call.episode not in apart]
        fresh.parts.extend([*([others] if others else []), *([call] for call in again), *old.parts])
        return [Answer(call.episode, cause) for call in guilty]

    def _start(self) -> WorkerProcess:
        ours, theirs = Wire.pair(decode)
        num_begun = self._context.RawValue("q", 0)
        process = self._context.Process(
            target=worker.serve, args=(theirs, num_begun, self.config, self.schemas), daemon=True, name="environments"
        )
        process.start()
        theirs.close()
        return WorkerProcess(process, ours, num_begun)

    def _greet(self, process: WorkerProcess) -> None:
        """Wait until it has imported the user's file."""
        limit_s = self.config.start_timeout_s
        lost = Refused("it must name a file that can be imported", self.spec or "", "mend it")
        deadline = time.monotonic() + limit_s
        found: list[Said] = []
        answer: Facts | Refused | None = None
        try:
            while not found and wait([process.wire.fileno()], max(deadline - time.monotonic(), 0.0)):
                found = process.wire.receive()
            answer = found[0].facts or found[0].refused if found else None
        except (EOFError, OSError):
            answer = lost._replace(seen=f"{self.spec}: it died with exit code {process.process.exitcode}")
        except Exception as error:  # whatever decoding raises
            answer = lost._replace(seen=f"{self.spec}: its process sent an invalid answer ({describe_error(error)})")
        if answer is None:
            raise RewardError(
                f"an environment process must start within {limit_s:g} s (env.start_timeout_s)",
                seen=f"nothing of {self.spec}",
                action="check what the file does when it is imported, or raise the timeout",
            )
        if isinstance(answer, Refused):
            key = "env.tools" if self.config.name is None else "env.name"
            raise ConfigError(f"{key}: {answer.rule}", seen=answer.seen, action=answer.action)
        self.facts = answer


def _names(calls: Sequence[Call]) -> set[str]:
    return {call.episode for call in calls}
