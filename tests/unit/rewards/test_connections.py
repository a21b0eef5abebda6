import http.client
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from slurm_rl.rewards.supervise import RewardServices
from tests.slurm.cluster.waiting import wait_until
from tests.unit.rewards.service_kit import odd_config, start_services

DESCRIPTORS = 512


def health(port: int) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/health")
        return connection.getresponse().status


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RewardServices]:
    """Run a service limited to DESCRIPTORS open files, so half as many connections, under constant health checks."""
    folder = tmp_path_factory.mktemp("service")
    (folder / "secrets").mkdir()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, before[1]))
    try:
        with pytest.MonkeyPatch.context() as patch, start_services(folder, odd_config()) as services:
            patch.setattr("slurm_rl.rewards.supervise._HEALTH_EVERY_S", 0.1)
            yield services
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def port(service: RewardServices) -> int:
    return int(service.urls[0].split(":")[2].partition("/")[0])


def test_service_at_connection_limit_answers_503_without_restart(service: RewardServices, port: int) -> None:
    before = service.pids
    with ExitStack() as held:
        for _ in range(DESCRIPTORS // 2):
            held.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert health(port) == 503
        time.sleep(1.0)  # several health checks of the supervisor
    wait_until(lambda: health(port) == 200, "the service's answer after the connections were closed")
    assert service.pids == before
