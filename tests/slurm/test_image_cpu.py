"""The CPU image, built without a registry, and the demo in it on two nodes of a real Slurm.

The base is built from the Debian mirror of this machine; Python packages come from its package index. Takes ten
minutes. tests/image/test_busybox_image.py checks the recipe, test_image_podman.py runs in podman on two nodes.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.podman_kit import install_missing, make_debian_root, pip_arguments
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.conftest import make_shared_dir
from tests.slurm.light.runs import LightRun
from tests.slurm.podman import clean_nodes, containers, make_store
from tests.slurm.submitting import ROOT, cli, run_cli, wait_for_end
from tests.whole_run import OVERRIDES, exact_rows

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1800)]

BASE, IMAGE = "localhost/debian:bookworm", "localhost/slurm_rl-cpu:test"


@dataclass(frozen=True)
class Built:
    folder: Path
    host_env: dict[str, str]
    """Variables for podman with write access to the store."""
    node_env: dict[str, str]
    """Variables for podman on the nodes, with read access to the store."""
    flags: list[str]

    def image(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "slurm_rl", "image", *words]
        env = {**self.host_env, "PYTHONPATH": str(ROOT)}
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=2400)


@pytest.fixture(scope="module")
def built(session_cluster: Cluster) -> Iterator[Built]:
    install_missing({"unsquashfs": "squashfs-tools"})
    folder = make_shared_dir(session_cluster)
    host_env, node_env = make_store(session_cluster, folder)
    make_debian_root(folder / "debian.tar")
    flags = ["--engine=podman", f"--base={BASE}", "--engine-arg=--network=host", *pip_arguments(folder)]
    built = Built(folder, host_env, node_env, flags)
    subprocess.run(
        ["podman", "import", str(folder / "debian.tar"), BASE], env=host_env, check=True, capture_output=True
    )
    done = built.image("build", *flags, "container.runtime=podman", f"container.image={IMAGE}")
    assert done.returncode == 0, done.stderr[-3000:]
    yield built
    clean_nodes(session_cluster)
    subprocess.run(["podman", "system", "reset", "--force"], env=host_env, capture_output=True, timeout=300)


def test_second_build_is_no_op(built: Built) -> None:
    again = built.image("build", *built.flags, "container.runtime=podman", f"container.image={IMAGE}")
    assert again.returncode == 0 and "is up to date" in again.stderr and "podman build" not in again.stderr


def test_sqsh_has_enroot_layout_and_manifest(built: Built) -> None:
    path = built.folder / "slurm_rl-cpu.sqsh"
    done = built.image("build", *built.flags, "container.runtime=pyxis", f"container.image={path}")
    assert done.returncode == 0, done.stderr[-3000:]
    listing = subprocess.run(["unsquashfs", "-ll", str(path)], capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in listing.splitlines() if "squashfs-root" in line]
    names = {line[5].removeprefix("squashfs-root") for line in lines}
    assert {"/etc/rc", "/etc/environment", "/etc/rc.local", "/dev", "/usr/bin/python3"} <= names
    assert not [name for name in names if name.startswith("/dev/")]
    assert {line[0][0] for line in lines} <= {"d", "-", "l"} and {line[1] for line in lines} == {"root/root"}
    read = subprocess.run(["unsquashfs", "-cat", str(path), "etc/environment"], capture_output=True, text=True)
    assert "PYTHONUNBUFFERED=1\n" in read.stdout
    manifest = json.loads(path.with_name(f"{path.name}.json").read_text())
    assert manifest["from"] == "cpu" and manifest["size"] == path.stat().st_size


def test_demo_trains_in_image_on_two_nodes(built: Built, cluster: Cluster) -> None:
    run = built.folder / "run"
    words = ["+cluster=slurm_cpu", "container.runtime=podman", f"container.image={IMAGE}", f"run_dir={run}"]
    done = run_cli(cluster, built.folder, *words, *OVERRIDES, "trainer.num_steps=3", env=built.node_env)
    assert f"image   {IMAGE}" in done.stderr
    end = wait_for_end(run, timeout_s=900)
    assert end["state"] == "finished", end
    rows = [row for row in exact_rows(run) if row["stage"] == "grpo"]
    assert rows[-1]["step"] - rows[0]["step"] == 2
    assert max(row["sync/probe_difference"] for row in rows) < 1e-4
    assert "grpo step 43" in cli(cluster, built.folder, "logs", str(run)).stdout
    opened = LightRun.open(cluster, run)
    assert len(opened.hosts(1)) == 2
    wait_until(lambda: not opened.leftovers(), "nothing of the run to be left")
    assert [containers(cluster, host, built.node_env) for host in opened.hosts(1)] == [[], []]
