"""torchrun with a store that listens only on the head's address: `python -m slurm_rl.node.bound_torchrun <arguments>`.

torch's TCPStore listens on every address of the node and has no authentication. On a single node the head's address is
loopback, so that no other machine can connect.
"""

from typing import Any

from slurm_rl.node.network import listen_at


def open_store(host: str, port: int, world_size: int | None, is_master: bool, timeout: Any, **options: Any) -> Any:
    """Return torch's TCPStore with a listener on `host` only."""
    from torch.distributed import TCPStore

    listener = listen_at(host, port) if is_master else None
    if listener is not None:
        port = listener.getsockname()[1]
        options["master_listen_fd"] = listener.detach()  # the store closes it
    return TCPStore(host, port, world_size, is_master, timeout, **options)


def bind_rendezvous() -> None:
    """Use `open_store` in the static rendezvous, which is the one of our plans."""
    from torch.distributed.elastic.rendezvous import static_tcp_rendezvous

    static_tcp_rendezvous.TCPStore = open_store


def main() -> None:
    from torch.distributed import run

    bind_rendezvous()
    run.main()


if __name__ == "__main__":
    main()
