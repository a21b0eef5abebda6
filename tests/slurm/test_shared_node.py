"""Runs of one or two users on one node have separate ports, folders and GPUs."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.cluster.cgroups import has_cgroup_v1
from tests.slurm.light.runs import wait_until_clean
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import ROOT, job_id, quote, submit, wait_for_end, wait_for_step

pytestmark = pytest.mark.slurm
NOBODY = 65534


@dataclass(frozen=True)
class OtherUser:
    """Command prefix, Python and environment of the other user."""

    prefix: list[str]
    python: str
    env: dict[str, str]

    def make_folder(self, folder: Path) -> Path:
        """Make a folder that the other user owns, below one that the user can traverse."""
        folder.parent.chmod(0o755)
        folder.mkdir()
        os.chown(folder, NOBODY, NOBODY)
        return folder


def find_other_user() -> OtherUser:
    """Return the other user; skip the test if the user cannot read a Python of this version and its packages."""
    # The interpreter of a virtual environment may be a link into root's home.
    python = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")
    packages = [path for path in sys.path if path.endswith("site-packages")]
    prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT), *packages]), "USER": "nobody"}
    check = [*prefix, str(python), "-c", "import ray, tests.slurm.light.runs"]
    if python is None or subprocess.run(check, env=env, cwd="/", capture_output=True).returncode:
        pytest.skip(f"no Python for another user: he may not read {ROOT} or its packages")
    return OtherUser(prefix, python, env)


def small_overrides(cluster: Cluster, *, num_gpus: int) -> list[str]:
    """Config overrides for a run on the first node that leaves room for others."""
    small = [f"cluster.slurm.nodelist={cluster.nodes[0]}", "cluster.num_nodes=1", "cluster.cpus_per_node=1"]
    small += ["cluster.mem_gb_per_node=2", f"+cluster.env.DEVICES={cluster.root}/dev"]
    if num_gpus:
        small += ["cluster.accelerator=nvidia", f"cluster.gpus_per_node={num_gpus}", "rollout.colocate=true"]
    return small


def submit_as(other: OtherUser, cluster: Cluster, folder: Path, *more: str) -> Path:
    """Submit a run as the other user, with that user's Python."""
    run, python = folder / "run", make_light_python(folder, python=other.python)
    argv = [*other.prefix, other.python, "-m", "slurm_rl", "+exp=demo", "+cluster=slurm_cpu", f"run_dir={quote(run)}"]
    env = {**cluster.env, **other.env, "HOME": str(folder)}
    done = subprocess.run([*argv, f"cluster.python={python}", *more], env=env, cwd=folder, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return run


def test_runs_of_two_users_share_node(cluster: Cluster, shared_dir: Path) -> None:
    other, node = find_other_user(), cluster.nodes[0]
    python = make_light_python(shared_dir)
    first, without = shared_dir / "first", shared_dir / "without"
    submit(cluster, first, python, *small_overrides(cluster, num_gpus=1))
    submit(cluster, without, python, *small_overrides(cluster, num_gpus=0))
    other_run = submit_as(
        other, cluster, other.make_folder(shared_dir / "theirs"), *small_overrides(cluster, num_gpus=1)
    )
    runs = [first, without, other_run]
    for run in runs:
        wait_for_step(run)
    assert len({json.loads((run / "attempts" / "1" / "head.json").read_text())["port"] for run in runs}) == 3
    folders = [cluster.root / "nodes" / node / path.lstrip("/") for path in cluster.leftovers(node).tmp]
    assert sorted(path.stat().st_uid for path in folders) == [0, 0, NOBODY]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    check_gpus(*[visible_gpus(run) for run in runs])
    for run in runs:
        assert job_id(run) in cluster.run(["squeue", "-h", "-w", node, "-t", "RUNNING", "-o", "%i"]).stdout.split()
        (run / "finish").touch()
    for run in runs:
        assert wait_for_end(run)["state"] == "finished"
    wait_until_clean(cluster)


def visible_gpus(run: Path) -> tuple[str, str]:
    """Return the GPU mask of a run's trainer, and the devices that it can open."""
    lines = (run / "attempts" / "1" / "logs" / "driver.log").read_text().splitlines()
    _, mask, _, *devices = next(line for line in lines if line.startswith("sees ")).split()
    return mask, " ".join(devices)


def check_gpus(first: tuple[str, str], without: tuple[str, str], other_run: tuple[str, str]) -> None:
    if has_cgroup_v1():
        # Slurm numbers GPUs within the job's cgroup, which holds one GPU.
        assert {first[1], other_run[1]} == {"gpu0", "gpu1"}
        assert (first[0], other_run[0], without[1]) == ("0", "0", "")
    else:
        assert {first[0], other_run[0]} == {"0", "1"}
