"""`doctor` in an allocation: one srun, every node looked at, and an all-reduce between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.submitting import ROOT

pytestmark = pytest.mark.slurm

# A task that needs no vLLM, whose import takes longest.
WORDS = ("doctor", "--json", "+exp=sft_tiny", "+cluster=slurm_cpu")


def test_one_srun_looks_at_every_node_of_an_allocation(cluster: Cluster, shared_dir: Path) -> None:
    argv = [sys.executable, "-m", "slurm_rl", *WORDS, f"cluster.run_root={shared_dir}"]
    env = {**os.environ, **cluster.env, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["salloc", "-N2", "--quiet", *argv], cwd=shared_dir, env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    nodes = json.loads(done.stdout)["nodes"]
    assert sorted(nodes) == sorted(cluster.nodes[:2])
    for found in nodes.values():
        states = {one["what"]: one["state"] for one in found}
        assert states["all-reduce between nodes"] == states["run_root"] == states["tmp_root"] == "ok"
        assert states["driver"] == states["rdma"] == "unseen"
    seen = {one["what"]: one["seen"] for one in nodes[cluster.nodes[0]]}
    assert "4 ranks" in seen["all-reduce between nodes"]
    steps = cluster.run(["scontrol", "show", "job", "--oneliner"]).stdout
    assert "JobState=COMPLETED" in steps
    assert not list(shared_dir.glob(".doctor-*"))


def test_a_node_that_does_not_see_the_folder_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """pytest's folder lies in /tmp, of which each node has its own."""
    argv = [sys.executable, "-m", "slurm_rl", *WORDS, f"cluster.run_root={tmp_path}"]
    env = {**os.environ, **cluster.env, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["salloc", "-N2", "--quiet", *argv], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 1, done.stdout + done.stderr
    [(who, [finding])] = json.loads(done.stdout)["nodes"].items()
    assert who == ", ".join(cluster.nodes[:2])
    assert finding["state"] == "wrong" and "cluster.run_root" in finding["action"]
