"""A worker machine (any machine except the head): it joins the head, runs its agent, and leaves at the end of the run.

It may connect early or late, and reconnects within job.start_timeout_s. On SIGTERM while its agent runs, it notifies
the head: all machines save and leave.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from slurm_rl import __version__
from slurm_rl.errors import BringUpError, ConfigError, SlurmRLError
from slurm_rl.launch.controller.agents import EXIT_NOT_STARTED, clean_here, settle_silent_agent, start_agent
from slurm_rl.launch.controller.attempts import EXIT_INTERRUPTED
from slurm_rl.launch.machines.hub import BEAT_S, SILENCE_S
from slurm_rl.launch.machines.link import Link, LinkClosed
from slurm_rl.launch.machines.nodes import Outbox, files_for_all, take_file
from slurm_rl.launch.machines.place import derive_ray_token
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.io_errors import log_to_stderr
from slurm_rl.run_dir.jsonl import RowTail
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, write_json
from slurm_rl.run_dir.run_secret import create_token, token_file

_POLL_S = 0.1
_CONNECT_S = 3.0
_RETRY_S = 0.5
_GREETING_S = 30.0
_REPORT_S = 30.0
# From SIGTERM to SIGKILL, for an agent without a head.
_KILL_WAIT_S = 30.0


@dataclass(frozen=True)
class Welcome:
    """The head's reply to a worker that it accepts."""

    rank: int
    num_nodes: int
    run_dir: str
    job_key: str
    word: str
    """Random word in the head's machines.json; a worker that can read it there shares the head's run directory."""


@dataclass(frozen=True)
class Invitation:
    """Address of the head, and the greeting of this machine."""

    head: str
    port: int
    secret: str
    hello: dict[str, Any]
    timeout_s: float


PrepareRun = Callable[[Welcome], tuple[JobPlan, bool]]
"""Prepare the run directory for the agent; return the plan, and True if the directory is shared with the head."""


class WorkerMachine:
    """This machine's part of a run."""

    def __init__(self, invitation: Invitation, prepare: PrepareRun) -> None:
        self._invitation, self._prepare = invitation, prepare
        self._link: Link | None = None
        self._heard_at = self._beat_at = 0.0
        self._agent: subprocess.Popen[bytes] | None = None
        self._signal: int | None = None
        self._is_noticed = False
        self._ended_at = 0.0
        self._end: dict[str, Any] | None = None
        self._place: Welcome
        self._plan: JobPlan
        self._run_dir: RunDir
        self._attempt: AttemptDir
        self._shares = False
        self._outbox: Outbox | None = None
        self._events: RowTail | None = None

    def main(self) -> int:
        """Serve until the run ends; return its exit code."""
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._on_signal)
        try:
            while self._end is None:
                self._join()
                if self._must_leave:
                    log_to_stderr("left before the run began here")
                    return EXIT_INTERRUPTED
                self._serve()
        finally:
            self._end_agent()
            if self._link is not None:
                self._link.close()
        cause = f": {self._end['cause']}" if self._end["cause"] else ""
        log_to_stderr(f"the run {self._end['state']}{cause}")
        return int(self._end["exit_code"])

    @property
    def _must_leave(self) -> bool:
        """Return True after a signal, once no agent runs and the head has had time to send the end of the run."""
        if self._signal is None or self._agent is not None:
            return False
        return not self._is_noticed or time.monotonic() > self._ended_at + _GREETING_S

    # ---- joining ---------------------------------------------------------------------------------

    def _join(self) -> None:
        """Connect until the head accepts this machine.

        Raises:
            BringUpError: it did not before the deadline.
            ConfigError: it refused this machine.
        """
        ask = self._invitation
        deadline, reported_at = time.monotonic() + ask.timeout_s, 0.0
        trouble = "no connection yet"
        while not self._must_leave:
            now = time.monotonic()
            if now > deadline:
                raise BringUpError(
                    f"the head must answer at {ask.head}:{ask.port} before job.start_timeout_s ({ask.timeout_s:g} s)",
                    seen=trouble,
                    action="start `python -m slurm_rl join` on the head, and open that port between the machines",
                )
            if now > reported_at + _REPORT_S:
                reported_at = now
                print(f"waiting for the head at {ask.head}:{ask.port} ({trouble})", file=sys.stderr, flush=True)
            try:
                if self._try_to_join():
                    return
                trouble = "the head still holds this machine's former connection"
            except (OSError, LinkClosed) as error:
                trouble = str(error)
            time.sleep(_RETRY_S)

    def _try_to_join(self) -> bool:
        ask = self._invitation
        sock = socket.create_connection((ask.head, ask.port), timeout=_CONNECT_S)
        self._link = link = Link(sock, ask.secret, is_head=False)
        link.send("hello", version=__version__, **ask.hello)
        deadline = time.monotonic() + _GREETING_S
        while time.monotonic() < deadline and not self._must_leave:
            for message in link.poll():
                if message["kind"] == "refused":
                    link.close()
                    if message["is_final"]:
                        raise ConfigError(f"the head refuses this machine: {message['cause']}")
                    return False
                if message["kind"] == "welcome":
                    self._settle(link, Welcome(**{name: message[name] for name in Welcome.__dataclass_fields__}))
                    return True
            time.sleep(_POLL_S)
        link.close()
        raise LinkClosed("the head must answer in time", seen=f"nothing within {_GREETING_S:g} s")

    def _settle(self, link: Link, place: Welcome) -> None:
        self._place, self._run_dir = place, RunDir(place.run_dir)
        self._plan, self._shares = self._prepare(place)
        self._heard_at = time.monotonic()
        link.send("ready", shares_run_dir=self._shares)
        where = "the head's" if self._shares else "this machine's own"
        text = f"joined as node {place.rank} of {place.num_nodes}; run {place.run_dir} ({where})"
        print(text, file=sys.stderr, flush=True)

    # ---- serving ---------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Handle messages until the run ends or the connection is lost, then end the agent."""
        assert self._link is not None
        while self._end is None and not self._must_leave:
            now = time.monotonic()
            try:
                for message in self._link.poll():
                    self._heard_at = now
                    self._handle(message)
            except LinkClosed:
                break
            if now > self._heard_at + SILENCE_S:
                break
            if now > self._beat_at + BEAT_S:
                self._beat_at = now
                self._link.send("beat")
            if self._signal is not None and not self._is_noticed and self._agent is not None:
                self._is_noticed = True
                self._link.send("notice", signal=signal.Signals(self._signal).name)
            self._send_news()
            self._check_agent()
            time.sleep(_POLL_S)
        self._end_agent()
        self._link.close()
        # Without a head, no reply to the notice will arrive.
        self._is_noticed = False
        if self._end is None and self._signal is None:
            log_to_stderr("lost the head; waiting for it")

    def _handle(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "start":
            self._end_agent()
            self._start_agent(int(message["attempt"]), list(message["hosts"]))
        elif kind == "file" and self._agent is not None and message["attempt"] == self._attempt.number:
            take_file(self._attempt, message["name"], message["content"], files_for_all(self._attempt))
        elif kind == "signal" and self._agent is not None and self._agent.poll() is None:
            self._agent.send_signal(message["number"])
        elif kind == "end":
            self._end = message

    def _start_agent(self, number: int, hosts: list[str]) -> None:
        self._attempt = self._run_dir.attempt(number)
        self._attempt.logs.mkdir(parents=True, exist_ok=True)
        if not self._shares:
            self._outbox = Outbox([self._attempt.node(self._place.rank)])
            self._events = RowTail(self._run_dir.events, from_end=True)
            if self._plan.torchrun is None:
                token = derive_ray_token(self._invitation.secret, self._place.job_key, number)
                create_token(self._run_dir, number, token)
        rank, job_key = self._place.rank, self._place.job_key
        # Without this process, the agent gets no signals from the head.
        die = signal.SIGTERM
        try:
            self._agent = start_agent(self._plan, self._attempt, rank, hosts, job_key, os.environ, death_signal=die)
        except SlurmRLError as error:
            record = {"host": socket.gethostname(), "rank": rank, "state": "ended", "error": str(error)}
            write_json(self._attempt.node(rank), record | {"exit_code": error.exit_code})
            self._send_end(EXIT_NOT_STARTED)

    def _send_news(self) -> None:
        if self._shares or self._outbox is None or self._events is None or self._link is None:
            return
        for name, content in self._outbox.news():
            self._link.send("record", attempt=self._attempt.number, name=name, content=content)
        for row in self._events.read_new():
            self._link.send("event", row=row)

    def _check_agent(self) -> None:
        if self._agent is None or self._agent.poll() is None or self._link is None:
            return
        rank, status = self._place.rank, self._agent.returncode
        log = self._attempt.log(f"node-{rank}")
        settle_silent_agent(self._plan, self._attempt, rank, socket.gethostname(), log, status)
        self._clean()
        self._send_end(status)

    def _send_end(self, status: int) -> None:
        assert self._link is not None
        self._send_news()
        self._link.send("exited", attempt=self._attempt.number, status=status)

    def _end_agent(self) -> None:
        """Send SIGTERM, then SIGKILL after _KILL_WAIT_S; clean up after the agent."""
        if self._agent is None:
            return
        if self._agent.poll() is None:
            self._agent.terminate()
        try:
            self._agent.wait(_KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            self._agent.kill()
            self._agent.wait()
        self._clean()

    def _clean(self) -> None:
        self._agent, self._ended_at = None, time.monotonic()
        clean_here(self._run_dir, self._plan, self._attempt, self._place.job_key, self._place.rank)
        if not self._shares:
            token_file(self._run_dir, self._attempt.number).unlink(missing_ok=True)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._signal = self._signal or signum
