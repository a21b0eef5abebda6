"""Sick nodes: found before an attempt, left out, remembered over requeues, forgotten."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.jsonl import read_rows
from tests.slurm.cluster import Cluster
from tests.slurm.light_python import make_light_python
from tests.slurm.sick_nodes import REMAP_FAILED, excluded, make_nvidia_smi, remembered
from tests.slurm.submitting import submit, wait_for_end, wait_for_step

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]


def start(cluster: Cluster, folder: Path, *words: str, name: str = "run") -> tuple[Path, str]:
    """A light run on two nodes with two GPUs each, of which the fake nvidia-smi in `folder` tells; and its job."""
    run = folder / name
    gpus = ["cluster.accelerator=nvidia", "cluster.gpus_per_node=2", "rollout.colocate=true", "model.dtype=float32"]
    small = ["cluster.num_nodes=2", "cluster.cpus_per_node=1", "cluster.mem_gb_per_node=2"]
    env = {"PATH": f"{folder}:{os.environ['PATH']}"}
    return run, submit(cluster, run, make_light_python(folder), *gpus, *small, *words, env=env)


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in read_rows(run / "events.jsonl") if row["kind"] == kind]


def finish(run: Path) -> dict[str, Any]:
    (run / "finish").touch()
    return wait_for_end(run)


def test_a_spare_takes_the_place_of_a_sick_node(cluster: Cluster, shared_dir: Path) -> None:
    make_nvidia_smi(shared_dir)
    first, second, third, _ = cluster.nodes
    (shared_dir / second).write_text(REMAP_FAILED)
    words = [f"cluster.slurm.nodelist='{first},{second},{third}'", "job.num_spare_nodes=1"]
    run, _ = start(cluster, shared_dir, *words)
    wait_for_step(run)
    (passed,) = events(run, "preflight/passed")
    assert passed["nodes"] == [first, third]
    assert "could not be remapped" in passed["left_out"][second]
    (unfit,) = events(run, "node/unfit")
    assert (unfit["node"], unfit["check"], unfit["strength"]) == (second, "ecc", "hard")
    assert remembered(run) == {second: "ecc"}
    assert finish(run)["state"] == "finished"
    assert events(run, "job/requeued") == []


def test_what_all_nodes_have_is_nobodys_fault(cluster: Cluster, shared_dir: Path) -> None:
    make_nvidia_smi(shared_dir)
    for node in cluster.nodes:
        (shared_dir / f"{node}.lies").touch()
    run, job = start(cluster, shared_dir)
    end = wait_for_end(run)
    assert end["state"] == "failed"
    assert "the check gpus of the preflight" in end["cause"]
    assert "2 of 2 nodes" in end["cause"]
    assert (remembered(run), excluded(cluster, job), events(run, "job/requeued")) == ({}, "(null)", [])
