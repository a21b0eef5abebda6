"""An image of ours under enroot and pyxis, where they are: they are in no package index, so CI has neither.

PATH=<enroot's bin>:$PATH SLURM_RL_PYXIS=<path>/spank_pyxis.so pytest tests/slurm/test_image_pyxis.py
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.podman_kit import install_missing, make_busybox_root
from tests.slurm.cluster import Cluster, ensure_packages, is_possible
from tests.slurm.conftest import make_shared_dir
from tests.slurm.podman import python_of_this_machine
from tests.slurm.submitting import cli, wait_for_end

PLUGIN = os.environ.get("SLURM_RL_PYXIS")
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(not PLUGIN or shutil.which("enroot") is None, reason="needs enroot, and SLURM_RL_PYXIS"),
]


@pytest.fixture(scope="module")
def pyxis_cluster() -> Iterator[Cluster]:
    """A cluster of its own, whose srun has pyxis."""
    if reason := is_possible():
        pytest.skip(reason)
    ensure_packages(accounting=False)
    install_missing({"busybox": "busybox-static", "mksquashfs": "squashfs-tools"})
    root = Path(tempfile.mkdtemp(prefix="slrl-", dir="/tmp"))
    plugins = Path(tempfile.mkdtemp(prefix="slrl-pyxis-", dir="/var/tmp")) / "plugstack.conf"
    # Each node has a /tmp of its own; unnamed containers need no epilog.
    plugins.write_text(f"required {PLUGIN} runtime_path=/tmp/pyxis container_scope=global\n")
    with Cluster(root, num_nodes=2, settings={"PlugStackConfig": str(plugins)}) as cluster:
        yield cluster
    shutil.rmtree(plugins.parent)
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def image(pyxis_cluster: Cluster) -> list[str]:
    """A .sqsh made from a tar, without any engine; its words for the command line."""
    folder = make_shared_dir(pyxis_cluster)
    make_busybox_root(folder / "root.tar")
    words = ["container.runtime=pyxis", f"container.image={folder}/rl.sqsh"]
    done = cli(pyxis_cluster, folder, "image", "import", f"--from={folder}/root.tar", *words)
    assert done.returncode == 0, done.stderr
    return [*words, f"cluster.python={sys.executable}"]


def test_check_looks_into_the_sqsh_on_a_node(pyxis_cluster: Cluster, image: list[str]) -> None:
    folder = make_shared_dir(pyxis_cluster)
    mounts = f"container.mounts=[{','.join(python_of_this_machine())}]"
    done = cli(pyxis_cluster, folder, "image", "check", "+cluster=slurm_cpu", *image, mounts)
    assert done.returncode == 0, done.stderr
    assert f"rl.sqsh on {pyxis_cluster.nodes[0]}: as expected" in done.stdout


def test_a_sqsh_without_python_is_refused_and_not_tried_again(pyxis_cluster: Cluster, image: list[str]) -> None:
    run = make_shared_dir(pyxis_cluster) / "run"
    done = cli(pyxis_cluster, run.parent, "+exp=demo", "+cluster=slurm_cpu", *image, f"run_dir={run}")
    assert done.returncode == 0 and "rl.sqsh (" in done.stderr, done.stderr
    end = wait_for_end(run)
    assert end["state"] == "failed" and end["exit_code"] == 2
    assert "the image must start" in end["cause"] and sys.executable in end["cause"]
    assert len(list((run / "attempts").glob("[0-9]*"))) == 1
