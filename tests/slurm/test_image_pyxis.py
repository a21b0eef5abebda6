"""Containers under enroot and pyxis, where installed; test_image_podman.py checks the same with podman everywhere.

Neither is in a package index, so CI has none. They need enroot 4 on PATH, a spank_pyxis.so of pyxis 0.24 built against
this Slurm's headers (Debian: libslurm-dev), user namespaces, squashfs-tools, jq, file and bsdmainutils:

    SLURM_RL_PYXIS=<path>/spank_pyxis.so pytest tests/slurm/test_image_pyxis.py

The plugin finds enroot on slurmd's PATH, which is that of the tests.
"""

import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.podman_kit import install_missing, make_busybox_root
from tests.slurm.cluster import Cluster, ensure_packages, is_possible
from tests.slurm.conftest import make_shared_dir
from tests.slurm.light_python import make_light_python
from tests.slurm.podman import host_python_mounts
from tests.slurm.submitting import cli, finish, quote, run_cli, wait_for_end, wait_for_step
from tests.whole_run import OVERRIDES

PLUGIN = os.environ.get("SLURM_RL_PYXIS")
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(not PLUGIN or shutil.which("enroot") is None, reason="needs enroot, and SLURM_RL_PYXIS"),
]
# enroot with private folders per node, since all nodes share /root; it logs its arguments and caller.
ENROOT = """#!/bin/sh
echo "$(hostname) $1" >> {log}
export ENROOT_DATA_PATH=/tmp/enroot/data ENROOT_CACHE_PATH=/tmp/enroot/cache ENROOT_RUNTIME_PATH=/tmp/enroot/run
exec {enroot} "$@"
"""


@pytest.fixture(scope="module")
def pyxis_cluster() -> Iterator[Cluster]:
    """Start a cluster with pyxis in srun; its nodes log their use of enroot in <root>/enroot.log."""
    if reason := is_possible():
        pytest.skip(reason)
    ensure_packages(accounting=False)
    install_missing({"busybox": "busybox-static", "mksquashfs": "squashfs-tools"})
    root = Path(tempfile.mkdtemp(prefix="slrl-", dir="/tmp"))
    folder = Path(tempfile.mkdtemp(prefix="slrl-pyxis-", dir="/var/tmp"))
    # Each node has a private /tmp; unnamed containers need no epilog.
    (folder / "plugstack.conf").write_text(f"required {PLUGIN} runtime_path=/tmp/pyxis container_scope=global\n")
    (folder / "enroot").write_text(ENROOT.format(log=root / "enroot.log", enroot=shutil.which("enroot")))
    (folder / "enroot").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        shared = [Path(__file__).parents[2], Path(sys.prefix)]
        settings = {"PlugStackConfig": str(folder / "plugstack.conf")}
        with Cluster(root, num_nodes=2, shared=shared, settings=settings) as cluster:
            yield cluster
    shutil.rmtree(folder)
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def image(pyxis_cluster: Cluster) -> list[str]:
    """Make a .sqsh from a tar, without a container engine; return the config overrides."""
    folder = make_shared_dir(pyxis_cluster)
    make_busybox_root(folder / "root.tar")
    words = ["container.runtime=pyxis", f"container.image={folder}/rl.sqsh"]
    run_cli(pyxis_cluster, folder, "image", "import", f"--from={folder}/root.tar", *words)
    return [*words, "+cluster=slurm_cpu"]


@pytest.fixture
def folder(pyxis_cluster: Cluster) -> Path:
    return make_shared_dir(pyxis_cluster)


def mounts(*more: object) -> str:
    return f"container.mounts=[{','.join([*host_python_mounts(), *map(str, more)])}]"


def test_wrong_image_is_refused_without_retry(pyxis_cluster: Cluster, image: list[str], folder: Path) -> None:
    """Debian's own Python has none of the packages."""
    system = ",".join(word for word in host_python_mounts() if word.startswith(("/usr:", "/lib")))
    words = [*OVERRIDES, *image, "cluster.python=/usr/bin/python3", f"container.mounts=[{system}]"]
    assert cli(pyxis_cluster, folder, *words, f"run_dir={folder}/run").returncode == 0
    end = wait_for_end(folder / "run")
    assert end["state"] == "failed" and end["exit_code"] == 2
    assert "torch is not there, expected" in end["cause"] and "image build --force" in end["cause"]
    assert len(list((folder / "run/attempts").glob("[0-9]*"))) == 1


def test_pyxis_message_is_cause(pyxis_cluster: Cluster, image: list[str], folder: Path) -> None:
    words = [*OVERRIDES, *image, f"cluster.python={sys.executable}", mounts("/nowhere/data")]
    assert cli(pyxis_cluster, folder, *words, f"run_dir={folder}/run").returncode == 0
    end = wait_for_end(folder / "run")
    assert end["state"] == "failed" and "/nowhere/data" in end["cause"], end
    assert "pyxis: " in end["cause"] and "spank: required plugin" not in end["cause"]


def test_image_is_unpacked_once_per_node(pyxis_cluster: Cluster, image: list[str], folder: Path) -> None:
    """Ray's files are on the node's own disk, where the preflight looked."""
    run, log = folder / "run", pyxis_cluster.root / "enroot.log"
    log.write_text("")
    python = make_light_python(folder, real_ray=True)
    words = [*OVERRIDES, *image, f"cluster.python={quote(python)}", mounts(folder), "cluster.num_nodes=2"]
    run_cli(pyxis_cluster, folder, *words, f"run_dir={run}", "container.setup=['echo set-up-inside']")
    wait_for_step(run)
    uses = Counter(log.read_text().splitlines())
    assert [uses[f"{node} create"] for node in pyxis_cluster.nodes] == [1, 1], uses
    second = pyxis_cluster.nodes[1]
    folders = pyxis_cluster.run(["sh", "-c", "ls -d /tmp/srl-*"], node=second).stdout.split()
    assert len(folders) == 1
    script = "import ray, socket; ray.init('auto', log_to_driver=False); print(len(ray.nodes()), socket.gethostname())"
    shell = cli(pyxis_cluster, folder, "attach", str(run), "--node=1", "--", sys.executable, "-c", script)
    assert shell.stdout.splitlines()[-1:] == [f"2 {second}"], shell.stderr
    # Only busybox has this program, so it runs in the image; nothing was unpacked for it.
    shell = cli(pyxis_cluster, folder, "attach", str(run), "--node=1", "--", "/bin/busybox", "ls", "-d", folders[0])
    assert shell.stdout.split() == folders, shell.stderr
    assert Counter(log.read_text().splitlines())[f"{second} create"] == 1
    finish(run)
    assert "trainer of attempt 1 resumes" in cli(pyxis_cluster, folder, "logs", str(run)).stdout
    for node in pyxis_cluster.nodes:
        left = pyxis_cluster.run(["sh", "-c", "ls -d /tmp/srl-*; enroot list"], node=node)
        assert left.stdout == "", left.stdout
