"""Connections for single replies: who may speak, and what becomes of requests when one breaks. Real sockets."""

from __future__ import annotations

import contextlib
import queue
import secrets
import socket
import threading
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_rl.errors import TrainingError
from slurm_rl.rollout import reply_server
from slurm_rl.rollout.replies import ReplySampler
from slurm_rl.rollout.reply_link import ReplyLink
from slurm_rl.rollout.reply_request import Refused, Replied, ReplyRequest
from slurm_rl.workers.ray_driver import Actor, ActorLost
from tests.unit.rl.episode_kit import SPEC, Engine, sampler_of

REQUESTS = [ReplyRequest(f"7.{at}.0", array("i", [at, at + 1]).tobytes(), at, SPEC) for at in range(20)]


class Driver:
    """What a loop over episodes is to a ReplySampler."""

    def __init__(self, *engines: Engine, care: Any = None, timeout_s: float = 30.0) -> None:
        self.inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.found: dict[str, list[int]] = {}
        self.refused: list[Refused] = []
        self.error: BaseException | None = None
        self.sampler = sampler_of(*engines, care=care, timeout_s=timeout_s)
        self.replies = ReplySampler(self.sampler, self.inbox.put, self._deliver, self._fail, self._refuse)

    def _deliver(self, replies: Sequence[Replied]) -> None:
        for name, reply in replies:
            assert name not in self.found, "delivered twice"
            self.found[name] = reply.unpack().token_ids

    def _fail(self, error: BaseException) -> None:
        self.error = error

    def _refuse(self, refused: Sequence[Refused]) -> None:
        self.refused += refused

    def run_until(self, count: int) -> dict[str, list[int]]:
        while len(self.found) < count:
            self.inbox.get(timeout=30)()
            if self.error is not None:
                raise self.error
        return self.found


def whole() -> dict[str, list[int]]:
    driver = Driver(Engine())
    driver.replies.ask(REQUESTS)
    return driver.run_until(len(REQUESTS))


def test_who_knows_another_key_hears_nothing_and_says_nothing() -> None:
    engine = Engine()
    address = engine.server.address()
    with pytest.raises((OSError, EOFError)):
        ReplyLink("rollout-0", address._replace(key=secrets.token_bytes(32)))
    # Who says what the engine said, as if it were a driver.
    with socket.create_connection(address[:2]) as end:
        end.sendall(end.recv(32))
        end.sendall(end.recv(32))
        assert end.recv(1) == b""
    assert not engine.asked


def test_strangers_who_hold_connections_keep_nobody_out() -> None:
    engine = Engine()
    address, before = engine.server.address(), threading.active_count()
    with contextlib.ExitStack() as held:
        for _ in range(500):
            held.enter_context(socket.create_connection(address[:2]))
        driver = Driver(engine)
        driver.replies.ask(REQUESTS)
        assert driver.run_until(len(REQUESTS)) == whole()
        assert threading.active_count() < before + 100


def test_an_engine_that_does_not_know_the_key_is_not_believed() -> None:
    engine = Engine()
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def pretend() -> None:
            end, _ = stranger.accept()
            with end:
                end.sendall(secrets.token_bytes(64))
                while end.recv(64):
                    pass

        threading.Thread(target=pretend, daemon=True).start()
        port = stranger.getsockname()[1]
        with pytest.raises(PermissionError):
            ReplyLink("rollout-0", engine.server.address()._replace(port=port))


def test_a_port_that_cannot_be_reached_is_named() -> None:
    engine = Engine()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    engine.server._address = engine.server._address._replace(port=port)
    driver = Driver(engine)
    driver.replies.ask(REQUESTS)
    with pytest.raises(TrainingError, match=rf"reach rollout-0 at 127.0.0.1, port {port}; .*refused"):
        driver.run_until(1)


def test_requests_of_a_connection_that_broke_are_asked_again_over_the_next() -> None:
    engine = Engine()
    driver = Driver(engine)
    driver.replies.ask(REQUESTS)
    driver.run_until(7)
    driver.replies._links["rollout-0"].wire.shut_down()  # as a network does it
    assert driver.run_until(len(REQUESTS)) == whole()


def test_connections_that_never_hold_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_server._Client, "serve", lambda self: None)
    driver = Driver(Engine())
    driver.replies.ask(REQUESTS)
    with pytest.raises(TrainingError, match=r"connection to rollout-0 .*must hold"):
        driver.run_until(1)


def test_what_breaks_an_engine_is_what_its_run_ends_with() -> None:
    class Broken(Engine):
        def begin_replies(self, client: str, requests: Sequence[ReplyRequest]) -> list[Refused]:
            raise TrainingError("a thing must be", seen="none")

    driver = Driver(Broken())
    driver.replies.ask(REQUESTS)
    with pytest.raises(TrainingError, match="a thing must be"):
        driver.run_until(1)


def test_a_successor_is_asked_when_it_has_its_weights_whoever_replaced_the_engine() -> None:
    """Another thread finds an engine that hangs, and its successor stands in its place before it is ready."""
    old, fresh = Engine(lives=5), Engine()
    waits, proven = threading.Event(), threading.Event()

    def recover(lost: ActorLost) -> None:
        assert lost.handle is old
        waits.set()
        assert proven.wait(30)

    driver = Driver(old, care=SimpleNamespace(recover=recover))
    driver.replies.ask(REQUESTS)
    driver.inbox.get(timeout=30)()
    assert driver.replies._links
    driver.sampler.engines[0] = Actor("rollout-0", fresh)
    driver.run_until(5)
    while not waits.is_set():
        assert not fresh.asked
        with contextlib.suppress(queue.Empty):
            driver.inbox.get(timeout=0.01)()
    assert not fresh.asked
    proven.set()
    assert driver.run_until(len(REQUESTS)) == whole()


def test_an_engine_that_does_not_answer_is_named() -> None:
    class Silent(Engine):
        def _open(self) -> SimpleNamespace:
            return SimpleNamespace(future=Future)

    driver = Driver(Silent(), timeout_s=0.2)
    driver.replies.ask(REQUESTS)
    with pytest.raises(TrainingError, match=r"rollout-0 must take requests within 0\.2 s"):
        driver.run_until(1)
