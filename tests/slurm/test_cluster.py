"""The test cluster behaves like a real one."""

import subprocess
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm


def test_nodes_share_only_cluster_folder_in_tmp(cluster: Cluster, shared_dir: Path) -> None:
    body = f"touch /tmp/mine-$(hostname) /dev/shm/mine /run/mine {shared_dir}/$(hostname); ls /tmp | grep mine"
    # Named, so that srun waits for a completing node.
    srun, nodes = ["srun", "-Q", "-N2"], cluster.nodes[:2]
    done = cluster.run([*srun, "-w", ",".join(nodes), "sh", "-c", body])
    assert (done.returncode, sorted(done.stdout.split())) == (0, [f"mine-{node}" for node in nodes]), done.stderr
    assert sorted(path.name for path in shared_dir.iterdir()) == nodes
    left = cluster.leftovers(nodes[0])
    assert (left.tmp, left.shm) == ([f"/tmp/mine-{nodes[0]}"], ["/dev/shm/mine"])
    cluster.run([*srun, "-w", ",".join(nodes), "sh", "-c", "rm /tmp/mine-$(hostname) /dev/shm/mine"])
    # slurmstepd outlives srun by a moment.
    wait_until(lambda: not cluster.leftovers(nodes[0]), "the node to be clean")


def test_leftovers_of_job_are_detected(cluster: Cluster) -> None:
    """Started as over ssh, so that no cgroup of Slurm ends the process."""
    node = cluster.nodes[0]
    listen = "import socket,time; s=socket.create_server(('',4321)); time.sleep(60)"
    # slurmstepd of the previous test outlives its srun by a moment.
    wait_until(lambda: not cluster.leftovers(node), "the node to be idle")
    with subprocess.Popen(cluster.on_node(node, ["python3", "-c", listen])) as stray:
        wait_until(lambda: cluster.leftovers(node).ports == [4321], "the port to be seen")
        found = cluster.leftovers(node).processes
        # python3 may be a wrapper that executes another one by its path.
        [cmdline] = [process.cmdline for process in found]
        assert cmdline.endswith(f"python3 -c {listen}")
        cluster.signal(node, found[0].pid, 9)
        stray.wait()
    wait_until(lambda: not cluster.leftovers(node), "nothing to be seen any more")
