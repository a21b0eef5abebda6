"""An existing Ray cluster: real, with its own ports, token and temp dir."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slurm_rl.node.ports import choose_ports
from slurm_rl.node.processes import end_marked, mark_env


@dataclass
class OthersCluster:
    address: str
    token: str
    mark: str
    """Of its processes; see `find_marked`."""


@contextmanager
def ray_up() -> Iterator[OthersCluster]:
    """Run the cluster during the block."""
    mark = f"test-ray-{secrets.token_hex(4)}"
    ports, token, tmp = choose_ports(mark, 1), secrets.token_hex(32), Path(tempfile.mkdtemp(prefix="rc", dir="/tmp"))
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RAY_ADDRESS")}
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "PATH": f"{Path(sys.executable).parent}:{env['PATH']}"}
    argv = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--node-ip-address=127.0.0.1"]
    argv += [f"--port={ports.gcs}", f"--dashboard-port={ports.dashboard}", f"--temp-dir={tmp}"]
    argv += ["--num-cpus=2", "--object-store-memory=250000000", "--disable-usage-stats", "--no-monitor"]
    argv += [f"--ray-client-server-port={ports.spare_min}", f"--node-manager-port={ports.node_manager}"]
    argv += [f"--dashboard-agent-listen-port={ports.dashboard_agent_listen}"]
    argv += [f"--min-worker-port={ports.worker_min}", f"--max-worker-port={ports.worker_max}"]
    with (tmp / "log").open("wb") as log:
        process = subprocess.Popen(argv, env=env | mark_env(mark), stdout=log, stderr=log, cwd=tmp)
    try:
        found = OthersCluster(f"http://127.0.0.1:{ports.dashboard}", token, mark)
        wait_until(lambda: is_up(found), 120, "the cluster's dashboard", lambda: (tmp / "log").read_text())
        yield found
    finally:
        end_marked(mark, 5.0, own_children=[process.pid])
        shutil.rmtree(tmp, ignore_errors=True)


def is_up(cluster: OthersCluster) -> bool:
    from slurm_rl.errors import SlurmRLError
    from slurm_rl.launch.ray.dashboard import Dashboard

    try:
        return bool(Dashboard(cluster.address, cluster.token).ray_version())
    except SlurmRLError:
        return False


def wait_until(happened: Callable[[], bool], timeout_s: float, what: str, context: Callable[[], str]) -> None:
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline, f"{what} did not come within {timeout_s} s:\n{context()}"
        time.sleep(0.5)
