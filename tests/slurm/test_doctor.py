"""`doctor` in an allocation: one srun checks every node and an all-reduce between them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.cluster.waiting import wait_until
from tests.slurm.submitting import ROOT

pytestmark = pytest.mark.slurm

# This task does not import vLLM, which is slow.
WORDS = ("doctor", "--json", "+exp=sft_tiny", "+cluster=slurm_cpu")


def run_doctor(cluster: Cluster, run_root: Path) -> subprocess.CompletedProcess[str]:
    argv = ["salloc", "-N2", "--quiet", sys.executable, "-m", "slurm_rl", *WORDS, f"cluster.run_root={run_root}"]
    env = {**os.environ, **cluster.env, "PYTHONPATH": str(ROOT)}
    return subprocess.run(argv, cwd=run_root, env=env, capture_output=True, text=True, timeout=600)


def test_doctor_checks_nodes_of_allocation(cluster: Cluster, shared_dir: Path) -> None:
    done = run_doctor(cluster, shared_dir)
    assert done.returncode == 0, done.stdout + done.stderr
    nodes = json.loads(done.stdout)["nodes"]
    assert sorted(nodes) == sorted(cluster.nodes[:2])
    for found in nodes.values():
        states = {name: found[name]["state"] for name in ("fabric", "start", "tmp_root", "versions")}
        assert states == dict.fromkeys(states, "ok"), found
        assert found["files"]["state"] in ("ok", "warn") and "bus bandwidth" in found["fabric"]["seen"]
    jobs = ["scontrol", "show", "job", "--oneliner"]
    wait_until(lambda: "JobState=COMPLETED" in cluster.run(jobs).stdout, "the end of the job")
    assert not list(shared_dir.glob(".doctor-*"))


@pytest.mark.slow
def test_doctor_names_nodes_without_shared_folder(cluster: Cluster, tmp_path: Path) -> None:
    """Each node has a private /tmp, which contains tmp_path."""
    done = run_doctor(cluster, tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    nodes = json.loads(done.stdout)["nodes"]
    assert sorted(nodes) == sorted(cluster.nodes[:2])
    for found in nodes.values():
        assert found["files"]["state"] == "bad" and "cluster.run_root" in found["files"]["action"]
