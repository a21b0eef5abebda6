"""Limits of uvicorn that the reward service relies on."""

from __future__ import annotations

import http.client
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.unit.rewards.service_kit import odd_config, start_services


def health(port: int) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/health")
        return connection.getresponse().status


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Port and process id of a service."""
    folder = tmp_path_factory.mktemp("service")
    (folder / "secrets").mkdir()
    with start_services(folder, odd_config()) as services:
        yield int(services.urls[0].split(":")[2].partition("/")[0]), services.pids[0]


def test_service_refuses_head_above_limit(service: tuple[int, int]) -> None:
    with socket.create_connection(("127.0.0.1", service[0]), timeout=60) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000)
        assert b"400 Bad Request" in sock.recv(1000)


def test_service_serves_again_after_more_connections_than_descriptors(service: tuple[int, int]) -> None:
    port, pid = service
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (256, hard))
    with ExitStack() as held:
        for _ in range(400):
            held.enter_context(socket.create_connection(("127.0.0.1", port)))
    for _ in range(100):
        if health(port) == 200:
            return
        threading.Event().wait(0.1)
    pytest.fail("the service must answer 200 after the connections are closed")
