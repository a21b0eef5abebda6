"""torchrun whose store listens on the head's own address alone: `python -m slurm_rl.node.bound_torchrun <its words>`.

torch's TCPStore listens on every address of a node, and whoever reaches it may read and set keys: it knows no
secret. On one node the head's address is loopback, so that no other machine does.
"""

from __future__ import annotations

from typing import Any

from slurm_rl.node.network import listen_at


def open_store(host: str, port: int, world_size: int | None, is_master: bool, timeout: Any, **options: Any) -> Any:
    """torch's TCPStore with a listener of ours."""
    from torch.distributed import TCPStore

    listener = listen_at(host, port) if is_master else None
    if listener is not None:
        port = listener.getsockname()[1]  # it may have been any free one
        options["master_listen_fd"] = listener.detach()  # the store closes it
    return TCPStore(host, port, world_size, is_master, timeout, **options)


def bind_rendezvous() -> None:
    """From here on the static rendezvous, which is the one that our plans name, makes its store so."""
    from torch.distributed.elastic.rendezvous import static_tcp_rendezvous

    static_tcp_rendezvous.TCPStore = open_store


def main() -> None:
    from torch.distributed import run

    bind_rendezvous()
    run.main()


if __name__ == "__main__":
    main()
