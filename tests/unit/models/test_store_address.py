"""The rendezvous store has no authentication, so it listens only on the address that the ranks use."""

import socket
from collections.abc import Callable
from datetime import timedelta

import pytest
from torch.distributed.elastic.rendezvous import static_tcp_rendezvous

from slurm_rl.node.bound_torchrun import bind_rendezvous, open_store
from slurm_rl.node.network import listen_at


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("find_port", [lambda: 0, free_port], ids=["any", "named"])
def test_store_listens_only_on_address_of_ranks(find_port: Callable[[], int]) -> None:
    port = find_port()
    store = open_store("127.0.0.1", port, 1, True, timedelta(seconds=30))
    store.set("key", "value")
    assert store.port == port or port == 0
    socket.create_connection(("127.0.0.1", store.port), 10).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.port), 10)
    client = open_store("127.0.0.1", store.port, None, False, timedelta(seconds=30), wait_for_workers=False)
    assert client.get("key") == b"value"


def test_torchrun_store_listens_only_on_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_tcp_rendezvous, "TCPStore", static_tcp_rendezvous.TCPStore)
    bind_rendezvous()
    port = free_port()
    meeting = static_tcp_rendezvous.StaticTCPRendezvous("127.0.0.1", port, 0, 1, "run", 30)
    meeting.next_rendezvous().store.set("key", "value")
    socket.create_connection(("127.0.0.1", port), 10).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 10)


def test_name_or_router_address_is_left_to_torch() -> None:
    assert listen_at("localhost", 0) is None
    assert listen_at("192.0.2.1", 0) is None
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        listen_at("127.0.0.1", taken.getsockname()[1])
