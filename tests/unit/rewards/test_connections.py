"""Connections that ask nothing cost the reward service neither its descriptors nor those who ask."""

from __future__ import annotations

import http.client
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from slurm_rl.rewards import app
from slurm_rl.rewards.app import BoundedProtocol
from slurm_rl.rewards.client import RewardClient
from tests.flood import flood, have_all_come, memory_mb
from tests.unit.rewards.service_kit import build_items, odd_config, start_services

HALF = b"POST /get_reward HTTP/1.1\r\nHost: x\r\nContent-Le"


def ask_health(port: int) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/health")
        return connection.getresponse().status


def test_more_half_sent_requests_than_descriptors_keep_nobody_out(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    with start_services(tmp_path, odd_config()) as services:
        port = int(services.urls[0].split(":")[2].partition("/")[0])
        resource.prlimit(services.pids[0], resource.RLIMIT_NOFILE, (256, 256))
        held = []
        for _ in range(400):
            held.append(socket.create_connection(("127.0.0.1", port)))
            held[-1].send(HALF)
        try:
            assert ask_health(port) == 200
        finally:
            for sock in held:
                sock.close()


def test_a_flood_costs_the_service_neither_its_clients_nor_memory_nor_disk(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    config, events, num_answers = odd_config(), list[str](), 0
    services = start_services(tmp_path, config, events)
    with services, RewardClient(config.service, lambda: services.urls, services.token) as client:
        # As most clusters have it.
        resource.prlimit(services.pids[0], resource.RLIMIT_NOFILE, (1024, 1024))
        [pid], before = services.pids, memory_mb(services.pids[0])
        with flood(int(services.urls[0].split(":")[2].partition("/")[0])) as flooder:
            is_over = False
            while not is_over:
                is_over = have_all_come(flooder)
                assert [result.value for result in client.score(build_items(8))] == [i / 8 for i in range(8)]
                num_answers += 1
            assert len(list(Path(f"/proc/{pid}/fd").iterdir())) < 700
            assert memory_mb(pid) - before < 100
        assert services.pids == [pid] and events == ["reward/service_up"]
    log = (tmp_path / "logs" / "reward-0.log").read_text()
    assert "Invalid HTTP request" in log and len(log.splitlines()) < 40, log
    assert num_answers > 1


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server in this process that answers everything, and gives a head half a second."""
    monkeypatch.setattr(app, "HEAD_S", 0.5)
    monkeypatch.setattr(app, "BODY_S", 1.5)
    listener = socket.create_server(("127.0.0.1", 0))

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    settings = uvicorn.Config(answer, http=BoundedProtocol, lifespan="off", log_level="error")
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield int(listener.getsockname()[1])
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("said", [b"", HALF, b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HT"])
def test_a_head_that_does_not_end_ends_its_connection(port: int, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.send(said)
        answer = b""
        try:
            while data := sock.recv(1000):
                answer += data
        except ConnectionResetError:
            pass
        assert answer.count(b"200 OK") == said.count(b"\r\n\r\n")


def test_a_body_that_does_not_end_ends_its_connection(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
        for _ in range(100):
            try:
                sock.send(b"x")
                threading.Event().wait(0.05)
            except OSError:
                break
        else:
            pytest.fail("five seconds were not too long")


def test_a_body_may_take_longer_than_a_head(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n")
        for _ in range(8):
            threading.Event().wait(0.1)
            sock.send(b"x")
        assert b"200 OK" in sock.recv(1000)


def test_a_head_that_is_too_long_is_refused(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000)
        answer = sock.recv(1000)
        assert b"400 Bad Request" in answer


def test_a_connection_that_is_kept_open_between_requests_lives_longer_than_a_head_may(port: int) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        for _ in range(3):
            connection.request("GET", "/")
            assert connection.getresponse().read() == b"ok"
            first = connection.sock
            threading.Event().wait(0.8)
        assert connection.sock is first and first is not None
