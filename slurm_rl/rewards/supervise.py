"""Supervisor of a run's reward services: start, health checks, restart, stop.

This process owns the listening sockets and the services inherit them: a port stays the same, and clients that connect
during a restart wait in the socket's backlog.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_rl.config.reward import RewardConfig
from slurm_rl.errors import ConfigError, RewardError
from slurm_rl.node.heartbeat import beat
from slurm_rl.rewards.program import Program
from slurm_rl.rewards.service import listen
from slurm_rl.run_dir.run_dir import write_text

_POLL_S = 0.2
_HEALTH_EVERY_S = 5.0
_HEALTH_TIMEOUT_S = 20.0
_STOP_S = 10.0
_IMPORT_S = 60.0
"""Seconds for the imports of a service, before its workers start."""
_MAX_DEATHS = 5
"""Consecutive deaths of a service within _LIVED_S of its first answer before it is abandoned."""
_MAX_FIRST_DEATHS = 2
_LIVED_S = 60.0
_LOG_TAIL = 2000


@dataclass
class _Replica:
    listener: socket.socket
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    up_at: float = 0.0
    is_up: bool = False
    was_up: bool = False
    num_deaths: int = 0
    start_again_at: float = 0.0
    asked_at: float = 0.0
    health: threading.Thread | None = None
    is_well: bool = False


class RewardServices:
    """`config.service.num_replicas` services; a context manager.

    Args:
        folder: receives config and token (0600).
        ports: candidates; empty: free ports.
        report: called with an event and its fields: `reward/service_up`, `reward/service_died`.
        token: required token; None creates one.
        first: number of the first service, in the names of logs.
        program: server to start; None: the reward service of `config`.
    """

    def __init__(
        self,
        config: RewardConfig,
        folder: Path,
        logs: Path,
        *,
        host: str = "127.0.0.1",
        ports: Sequence[int] = (),
        report: Callable[..., None] = lambda kind, **fields: None,
        token: str | None = None,
        first: int = 0,
        program: Program | None = None,
    ) -> None:
        self._config, self._logs, self._first = config, logs, first
        self._token_file, self._config_file = folder / "reward-token", folder / "reward.json"
        self._host, self._ports, self._report = host, list(ports), report
        words = ("slurm_rl.rewards.service", f"--config={self._config_file}", f"--token-file={self._token_file}")
        # The workers' own deadline comes first and has the better message.
        start_s = config.start_timeout_s + _IMPORT_S
        self._program = program or Program("reward", "/get_reward", words, {}, start_s)
        self.token = token or secrets.token_hex(16)
        self._replicas: list[_Replica] = []
        self._closing = threading.Event()
        self._error: RewardError | None = None
        # All services are started from this thread: PR_SET_PDEATHSIG fires when the starting thread ends.
        self._thread = threading.Thread(target=self._watch, name="reward-services", daemon=True)

    def __enter__(self) -> RewardServices:
        write_text(self._token_file, self.token + "\n", mode=0o600)
        write_text(self._config_file, self._config.model_dump_json(indent=2) + "\n")
        self._logs.mkdir(parents=True, exist_ok=True)
        self._replicas = [
            _Replica(self._listen(), self._logs / f"{self._program.name}-{index}.log")
            for index in range(self._first, self._first + self._config.service.num_replicas)
        ]
        self._thread.start()
        try:
            self._wait_until_up(time.monotonic() + self._program.start_s)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()
        for replica in self._replicas:
            replica.listener.close()

    @property
    def urls(self) -> list[str]:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return [f"http://{host}:{replica.listener.getsockname()[1]}{self._program.route}" for replica in self._replicas]

    @property
    def pids(self) -> list[int]:
        return [replica.process.pid for replica in self._replicas if replica.process is not None]

    def check(self) -> None:
        """Raise RewardError with the end of the log if a service was abandoned."""
        if self._error is not None:
            raise self._error

    def _listen(self) -> socket.socket:
        if not self._ports:
            return listen(self._host, 0)
        while True:
            port = self._ports.pop()
            try:
                return listen(self._host, port)
            except ConfigError:
                if not self._ports:
                    raise

    def _wait_until_up(self, give_up: float) -> None:
        while not all(replica.is_up for replica in self._replicas):
            self.check()
            beat()
            if time.monotonic() > give_up:
                waiting = next(replica for replica in self._replicas if not replica.is_up)
                raise RewardError(
                    f"the {self._program.name} services must start within {self._program.start_s:g} s",
                    seen=_tail(waiting.log),
                    where=str(waiting.log),
                )
            time.sleep(_POLL_S / 4)

    # ---- the watching thread -------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            while not self._closing.wait(_POLL_S / 4):
                for replica in self._replicas:
                    self._look_after(replica)
        except Exception as error:  # for example a full disk
            self._error = RewardError(
                f"the supervisor of the {self._program.name} services must run", seen=f"{type(error).__name__}: {error}"
            )
        finally:
            self._end_all()

    def _look_after(self, replica: _Replica) -> None:
        now = time.monotonic()
        if replica.process is None:
            if now >= replica.start_again_at and self._error is None:
                self._start(replica)
        elif replica.process.poll() is not None:
            self._note_death(replica, f"exit status {replica.process.returncode}")
        else:
            self._look_at_health(replica, now)

    def _start(self, replica: _Replica) -> None:
        fd = replica.listener.fileno()
        argv = [sys.executable, "-m", *self._program.words, f"--fd={fd}", f"--parent={os.getpid()}"]
        with replica.log.open("ab") as log:
            replica.process = subprocess.Popen(
                argv,
                env={**os.environ, **self._program.variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[fd],
                start_new_session=True,
            )
        replica.started_at = replica.asked_at = time.monotonic()
        replica.is_up = replica.is_well = False
        replica.health = None

    def _look_at_health(self, replica: _Replica, now: float) -> None:
        """Query /health in a thread; kill a service that is late."""
        if replica.health is not None and not replica.health.is_alive():
            replica.health = None
            if replica.is_well and not replica.is_up:
                replica.is_up = replica.was_up = True
                replica.up_at = now
                self._report(
                    "reward/service_up",
                    service=self._program.name,
                    pid=replica.process.pid if replica.process else None,
                )
            if replica.is_up and not replica.is_well:
                self._end(replica, "it did not answer /health")
                return
        if replica.is_up and now - replica.up_at > _LIVED_S:
            replica.num_deaths = 0
        if not replica.is_up and now - replica.started_at > self._program.start_s:
            self._end(replica, f"it was not up within {self._program.start_s:g} s")
        elif replica.health is None and (not replica.is_up or now - replica.asked_at > _HEALTH_EVERY_S):
            replica.asked_at = now
            replica.health = threading.Thread(target=self._ask_health, args=(replica, replica.process), daemon=True)
            replica.health.start()

    def _ask_health(self, replica: _Replica, process: subprocess.Popen[bytes] | None) -> None:
        url = self.urls[self._replicas.index(replica)].removesuffix(self._program.route) + "/health"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.token}"})
        # Ignore proxy variables: the service is in the cluster.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            opener.open(request, timeout=_HEALTH_TIMEOUT_S).close()
            is_well = True
        except urllib.error.HTTPError:
            is_well = True  # it answers, at its limit of connections
        except (OSError, http.client.HTTPException):
            is_well = False
        if replica.process is process:  # otherwise the answer belongs to a dead process
            replica.is_well = is_well

    def _end(self, replica: _Replica, why: str) -> None:
        assert replica.process is not None
        replica.process.kill()
        replica.process.wait()
        self._note_death(replica, why)

    def _note_death(self, replica: _Replica, how: str) -> None:
        if replica.process is not None:
            _end_group(replica.process)
        replica.process = None
        replica.is_up = False
        replica.num_deaths += 1
        pause_s = min(0.1 * 2**replica.num_deaths, 10.0) if replica.num_deaths > 1 else 0.0
        replica.start_again_at = time.monotonic() + pause_s
        self._report("reward/service_died", service=self._program.name, how=how, deaths=replica.num_deaths)
        if replica.num_deaths >= (_MAX_DEATHS if replica.was_up else _MAX_FIRST_DEATHS):
            self._error = RewardError(
                f"a {self._program.name} service must live longer than {_LIVED_S:g} s",
                seen=f"{replica.num_deaths} deaths, the last by {how}; its log ends with: {_tail(replica.log)}",
                where=str(replica.log),
                action="fix the error in the log",
            )
            # Reject new connections instead of leaving them in the backlog.
            replica.listener.shutdown(socket.SHUT_RDWR)

    def _end_all(self) -> None:
        processes = [replica.process for replica in self._replicas if replica.process is not None]
        for process in processes:
            process.send_signal(signal.SIGTERM)
        give_up = time.monotonic() + _STOP_S
        for process in processes:
            try:
                process.wait(max(0.0, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what an ended service left behind, such as the engine of a server, which holds a GPU."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _tail(log: Path) -> str:
    try:
        text = log.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        text = ""
    return text[-_LOG_TAIL:] or "nothing"


def choose_ports(environment: Mapping[str, str]) -> list[int]:
    """Return the spare ports of this attempt; [] outside of a node agent."""
    first, _, last = environment.get("SLURM_RL_SPARE_PORTS", "").partition("-")
    return list(range(int(first), int(last) + 1)) if last else []
