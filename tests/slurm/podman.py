"""podman on the nodes of the test Slurm: one shared image store, private storage on each node."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.podman_kit import install_missing, make_busybox_root, podman_environment
from tests.slurm.cluster import Cluster
from tests.slurm.light.runs import wait_until_clean
from tests.slurm.submitting import ROOT

PACKAGES = {"podman": "podman", "runc": "runc", "busybox": "busybox-static"}
BUSYBOX = "localhost/busybox:1"


def make_store(cluster: Cluster, folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return podman variables for this machine, which fills the store, and for the nodes, which read it."""
    install_missing(PACKAGES)
    store, node = folder / "store", folder / "node"
    store.mkdir()
    node.mkdir()
    host_env = podman_environment(store, driver="overlay")
    node_env = podman_environment(node, driver="overlay", graph="/tmp/podman")
    with (node / "storage.conf").open("a") as file:
        file.write(f'[storage.options]\nadditionalimagestores = ["{store}/graph"]\n')
    make_busybox_root(store / "root.tar")
    done = subprocess.run(
        ["podman", "import", str(store / "root.tar"), BUSYBOX], env=host_env, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"podman does not run here: {done.stderr.strip().splitlines()[-1:]}")
    return host_env, {name: node_env[name] for name in ("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF")}


def host_python_mounts() -> list[str]:
    """Return mounts that provide this test's interpreter and packages in an image without Python."""
    folders = {Path("/usr"), Path("/lib"), Path("/lib64"), Path(sys.prefix), Path(sys.base_prefix), ROOT / "tests"}
    tops = [folder for folder in folders if folder.is_dir() and not {*folder.parents} & folders]
    return [f"{folder}:{folder}:ro" for folder in sorted(tops)]


def containers(cluster: Cluster, node: str, env: dict[str, str]) -> list[str]:
    """Return the names of all containers on a node, including stopped ones."""
    variables = [f"{name}={value}" for name, value in env.items()]
    done = cluster.run(["env", *variables, "podman", "ps", "--all", "--format={{.Names}}"], node=node)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def clean_nodes(cluster: Cluster) -> None:
    """Remove podman's storage from the nodes, because other tests check for leftovers."""
    script = "umount -l /tmp/podman/overlay; rm -rf /tmp/podman /tmp/podman-run /dev/shm/libpod_lock"
    for node in filter(cluster.is_on, cluster.nodes):
        done = cluster.run(["sh", "-c", script], node=node)
        assert done.returncode == 0, done.stderr
    wait_until_clean(cluster)
