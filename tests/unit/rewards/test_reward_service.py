import http.client
import json
import os
import resource
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from slurm_rl.config.reward import RewardServiceConfig
from slurm_rl.errors import RewardError
from slurm_rl.rewards import supervise
from slurm_rl.rewards.client import RewardClient
from slurm_rl.rewards.supervise import RewardServices
from tests.slurm.cluster.waiting import wait_until
from tests.unit.rewards.reward_pool_kit import outlive_killed
from tests.unit.rewards.service_kit import build_items, odd_config, start_services


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RewardServices]:
    with start_services(tmp_path_factory.mktemp("service"), odd_config(max_body_mb=1.0)) as services:
        yield services


def build_client(services: RewardServices, **options: Any) -> RewardClient:
    return RewardClient(RewardServiceConfig(**options), lambda: services.urls, services.token, services.check)


def post(services: RewardServices, body: bytes, authorization: str | None = None) -> tuple[int, Any]:
    address = urlsplit(services.urls[0])
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
    try:
        headers = {"Authorization": f"Bearer {services.token}" if authorization is None else authorization}
        connection.request("POST", "/get_reward", body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


GOOD = json.dumps({"query": ["3+4=7"], "prompts": ["3+4="], "labels": ["4"]}).encode()


def test_openrlhf_client_gets_lists_of_numbers(services: RewardServices) -> None:
    status, answer = post(services, GOOD)
    assert status == 200
    assert answer == {"rewards": [0.5], "scores": [1.0], "length": [1.0], "failed": [0.0]}


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer wrong", "Basic eDp5", "Basic \xff", "Basic !", "x"])
def test_wrong_token_is_401(services: RewardServices, authorization: str) -> None:
    status, answer = post(services, GOOD, authorization)
    assert status == 401
    assert "must carry the service's token" in answer["error"]


def test_token_may_be_password_of_url(services: RewardServices) -> None:
    import requests  # OpenRLHF's clients use requests

    url = services.urls[0].replace("http://", f"http://any:{services.token}@")
    answer = requests.post(url, json=json.loads(GOOD), timeout=120)
    assert answer.json()["rewards"] == [0.5]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"[" * 500_000, 400, "must be JSON"),
        (b'{"query": ["\\ud800"], "prompts": ["b"], "labels": ["1"]}', 422, "'\\ud800'"),
        (b'{"query": ["' + b"x" * 5_000_000 + b'"]}', 413, "at most 1,000,000 bytes"),
    ],
    ids=["deep", "surrogate", "huge"],
)
def test_bad_requests_are_explained_and_service_stays_up(
    services: RewardServices, body: bytes, status: int, words: str
) -> None:
    pids = services.pids
    seen, answer = post(services, body)
    assert seen == status
    assert words in answer["error"]
    assert post(services, GOOD)[0] == 200
    assert services.pids == pids


def test_token_is_in_private_file_and_no_command_line(services: RewardServices) -> None:
    assert stat.S_IMODE(services._token_file.stat().st_mode) == 0o600
    [pid] = services.pids
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    assert len(family) >= 3
    assert not any(services.token in word for process in family for word in process.cmdline())


def test_repeatedly_dying_service_ends_run_with_last_output(tmp_path: Path) -> None:
    config = odd_config().model_copy(update={"function": "no_such_file.py:reward_func"})
    services = start_services(tmp_path, config)
    with pytest.raises(RewardError, match=r"(?s)2 deaths.*exit status 1.*no_such_file.py"):
        services.__enter__()
    assert services.pids == []


def test_failed_service_releases_waiters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "_MAX_DEATHS", 1)
    with start_services(tmp_path, odd_config()) as services, build_client(services) as client:
        os.kill(services.pids[0], signal.SIGKILL)
        with pytest.raises(RewardError, match="1 deaths, the last by exit status -9"):
            client.score(build_items(5))


def test_long_start_does_not_reset_count_of_deaths(tmp_path: Path) -> None:
    services, now = start_services(tmp_path, odd_config()), time.monotonic()
    with supervise.listen("127.0.0.1", 0) as listener:
        replica = supervise._Replica(listener, tmp_path / "log", is_up=True, is_well=True, num_deaths=4)
        replica.started_at, replica.up_at, replica.asked_at = now - 300, now - 1, now
        services._look_at_health(replica, now)
        assert replica.num_deaths == 4
        replica.up_at = now - 300
        services._look_at_health(replica, now)
        assert replica.num_deaths == 0


def test_ended_watch_is_explained(tmp_path: Path) -> None:
    def full(kind: str, **fields: Any) -> None:
        raise OSError("No space left on device")

    services = RewardServices(odd_config(), tmp_path, tmp_path, report=full)
    with pytest.raises(RewardError, match="must run; got OSError: No space left"), services:
        wait_until(services.check, "the error", timeout_s=240)


def test_unresponsive_service_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "_HEALTH_EVERY_S", 0.1)
    monkeypatch.setattr(supervise, "_HEALTH_TIMEOUT_S", 1.0)
    with start_services(tmp_path, odd_config()) as services, build_client(services) as client:
        [stopped] = services.pids
        os.kill(stopped, signal.SIGSTOP)
        assert [result.value for result in client.score(build_items(16))] == [i / 8 for i in range(16)]
        assert services.pids != [stopped]


def test_service_leaves_no_process_or_port(tmp_path: Path) -> None:
    with start_services(tmp_path, odd_config(num_replicas=2)) as services:
        family = [psutil.Process(pid) for pid in services.pids]
        family += [child for process in family for child in process.children(recursive=True)]
        assert len(family) >= 6
        ports = [urlsplit(url).port for url in services.urls]
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            http.client.HTTPConnection("127.0.0.1", port, timeout=5).connect()


PARENT = """
import sys, time
from pathlib import Path
from slurm_rl.config.reward import RewardConfig
from slurm_rl.rewards.supervise import RewardServices

if __name__ == "__main__":
    with RewardServices(RewardConfig(verifiers={"arithmetic": 1.0}), Path(sys.argv[1]), Path(sys.argv[1])):
        print("up", flush=True)
        time.sleep(600)
"""


def test_services_die_with_killed_run(tmp_path: Path) -> None:
    assert outlive_killed(PARENT, tmp_path, str(tmp_path)) == []


def storm(tmp_path: Path, num_requests: int, num_clients: int, num_kills: int) -> None:
    """Send single-item requests from many clients; 1 % of the items hang, 1 % crash, and the services are killed."""
    deeds = dict.fromkeys(range(50, num_requests, 100), "hang") | dict.fromkeys(range(99, num_requests, 100), "exit")
    items = build_items(num_requests, deeds)
    results: dict[int, Any] = {}
    events: list[str] = []
    config = odd_config(num_connections=num_clients, deadline_s=300)
    with (
        start_services(tmp_path, config, events) as services,
        build_client(services, **config.service.model_dump()) as c,
    ):
        places = iter(range(num_requests))
        lock = threading.Lock()

        def be_a_client() -> None:
            while True:
                with lock:
                    place = next(places, None)
                if place is None:
                    return
                [results[place]] = c.score([items[place]])

        clients = [threading.Thread(target=be_a_client) for _ in range(num_clients)]
        for thread in clients:
            thread.start()
        for kill in range(1, num_kills + 1):
            share = kill / (num_kills + 1)
            wait_until(lambda share=share: len(results) > share * num_requests, "results", timeout_s=600)
            os.kill(services.pids[0], signal.SIGKILL)
        for thread in clients:
            thread.join()
    assert len(results) == num_requests
    assert all(results[i].item == items[i] for i in range(num_requests))
    failed = {i: result.failure for i, result in results.items() if result.failure}
    assert failed == {i: "hang" if deed == "hang" else "crash" for i, deed in deeds.items()}
    assert all(results[i].value == i / 8 for i in range(num_requests) if i not in deeds)
    assert events.count("reward/service_died") == num_kills


def test_killed_service_with_faulty_items_loses_nothing(tmp_path: Path) -> None:
    storm(tmp_path, num_requests=300, num_clients=64, num_kills=2)


@pytest.mark.slow
def test_same_with_ten_thousand_requests(tmp_path: Path) -> None:
    storm(tmp_path, num_requests=10_000, num_clients=64, num_kills=2)


DESCRIPTORS = 512


def health(port: int) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/health")
        return connection.getresponse().status


@pytest.fixture
def crowded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RewardServices]:
    """Run a service limited to DESCRIPTORS open files, so half as many connections, under constant health checks."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(supervise, "_HEALTH_EVERY_S", 0.1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, before[1]))
    try:
        with start_services(tmp_path, odd_config()) as services:
            yield services
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_service_at_connection_limit_answers_503_without_restart(crowded: RewardServices) -> None:
    before, port = crowded.pids, urlsplit(crowded.urls[0]).port or 0
    with ExitStack() as held:
        for _ in range(DESCRIPTORS // 2):
            held.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert health(port) == 503
        time.sleep(1.0)  # several health checks of the supervisor
    wait_until(lambda: health(port) == 200, "an answer after the connections were closed")
    assert crowded.pids == before
