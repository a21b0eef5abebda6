"""A run with a model of the hub on nodes that have no route to the internet: the test cluster's have none."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.submitting import refused, run_cli, wait_for_end
from tests.tiny_models import SMALL, SMALL_MODEL, build_tiny_model
from tests.unit.plugins.prepare.hub_server import Hub
from tests.whole_run import OVERRIDES

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(900)]

NAME = "Acme/tiny-1B"
ADDRESS = "import socket; socket.create_connection(('203.0.113.1', 443), 5)"
HOST = "import socket; socket.create_connection(('probe.example', 443), 5)"
ALLOWED = {"metadata.google.internal", "1.0.0.127.in-addr.arpa"}
"""Ray's dashboard looks for the cloud of its node, on the node's own network; loopback's name is looked up, too."""


@contextmanager
def names_asked_for(cluster: Cluster) -> Iterator[set[str]]:
    """Be the name server of the nodes, which has no names; yield those that were asked for."""
    found: set[str] = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((cluster.slot.controller_ip, 53))

        def serve() -> None:
            while True:
                query, client = server.recvfrom(512)
                if not query:
                    return
                labels, place = [], 12
                while query[place]:
                    labels.append(query[place + 1 : place + 1 + query[place]].decode())
                    place += 1 + query[place]
                found.add(".".join(labels))
                # A reply, with recursion: no such name (RFC 1035, 4.1.1). Additional records of the query are cut.
                server.sendto(query[:2] + b"\x81\x83" + query[4:6] + bytes(6) + query[12 : place + 5], client)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield found
        finally:
            server.sendto(b"", server.getsockname())
            thread.join(10)


def test_prepared_model_trains_on_nodes_without_route(cluster: Cluster, shared_dir: Path) -> None:
    words = [word for word in OVERRIDES if word != SMALL_MODEL]
    words += ["+cluster=slurm_cpu", "cluster.num_nodes=1", "cluster.internet=false", f"data.root={shared_dir}/data"]
    words += ["model=hf", f"model.path={NAME}", f"run_dir={shared_dir}/run", "warmup.num_steps=4"]
    plan = refused(cluster, shared_dir, "plan", *words)
    advice = re.search(r"python -m slurm_rl (prepare model \S+ --root [^\s)]+)", plan.stderr)
    assert plan.returncode == 2 and advice is not None and not (shared_dir / "run").exists()
    build_tiny_model(SMALL, 0, shared_dir / "model")
    hub = Hub()
    hub.repos[f"models/{NAME}"] = {path.name: path.read_bytes() for path in (shared_dir / "model").iterdir()}
    try:
        run_cli(cluster, shared_dir, *advice[1].split(), env={"HF_ENDPOINT": hub.url, "HF_HOME": f"{shared_dir}/hf"})
    finally:
        hub.close()
    with names_asked_for(cluster) as names:
        reached = [cluster.run(["python3", "-c", code], node=cluster.nodes[0]).stderr for code in (ADDRESS, HOST)]
        assert "Network is unreachable" in reached[0] and "Name or service not known" in reached[1]
        assert names == {"probe.example"}
        run_cli(cluster, shared_dir, *words)
        end = wait_for_end(shared_dir / "run", timeout_s=420)
    assert end["state"] == "finished", end
    assert names - {"probe.example"} <= ALLOWED
