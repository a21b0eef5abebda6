"""`site` on a login node of a real Slurm writes a preset that plans, submits and runs unmodified."""

from pathlib import Path

import pytest
import yaml

from tests.slurm.cluster import Cluster
from tests.slurm.cluster.accounting import ACCOUNT
from tests.slurm.conftest import make_shared_dir
from tests.slurm.submitting import queue, run_cli, wait_for_end
from tests.whole_run import OVERRIDES

pytestmark = pytest.mark.slurm


def write_preset(cluster: Cluster, folder: Path, *words: str) -> str:
    """Write a preset to `folder` and return its text."""
    done = run_cli(cluster, folder, "site", "--name", "mysite", *words, env={"XDG_CONFIG_HOME": str(folder)})
    assert "slurm   takes a job of it (sbatch --test-only)" in done.stdout
    assert queue(cluster) == "", "nothing is queued"
    return (folder / "slurm_rl" / "cluster" / "mysite.yaml").read_text()


@pytest.mark.versions
def test_preset_describes_cluster_and_plans(cluster: Cluster, shared_dir: Path) -> None:
    text = write_preset(cluster, shared_dir)
    found = yaml.safe_load(text)["cluster"]
    assert (found["launcher"], found["slurm"]["partition"], found["slurm"]["account"]) == ("slurm", "main", None)
    # Its GPUs have a type of no known vendor.
    assert (found["accelerator"], found["cpus_per_node"], found["mem_gb_per_node"]) == ("cpu", 4, 11)
    assert "GRES gpu:fake:2" in text and "4 such nodes, of which 4 take jobs now" in text
    words = ["plan", "--full", "+exp=demo", "+cluster=mysite"]
    done = run_cli(cluster, shared_dir, *words, env={"XDG_CONFIG_HOME": str(shared_dir)})
    assert "--partition=main" in done.stdout


@pytest.mark.slow
@pytest.mark.versions
def test_demo_trains_with_preset(cluster: Cluster, shared_dir: Path) -> None:
    write_preset(cluster, shared_dir)
    words = ["+cluster=mysite", f"run_dir={shared_dir / 'run'}", *OVERRIDES]
    run_cli(cluster, shared_dir, *words, env={"XDG_CONFIG_HOME": str(shared_dir)})
    end = wait_for_end(shared_dir / "run", timeout_s=420)
    assert (end["state"], end["exit_code"]) == ("finished", 0)


def test_preset_has_gpus_time_limit_and_nodes_in_service(cluster: Cluster, shared_dir: Path) -> None:
    cluster.run(["scontrol", "update", f"nodename={cluster.nodes[0]}", "state=drain", "reason=test"])
    cluster.run(["scontrol", "update", "partitionname=high", "MaxTime=90"])
    try:
        text = write_preset(cluster, shared_dir, "--accelerator", "nvidia", "--partition", "high")
    finally:
        cluster.run(["scontrol", "update", "partitionname=high", "MaxTime=INFINITE"])
    assert "4 such nodes, of which 3 take jobs now" in text
    found = yaml.safe_load(text)
    assert found["job"]["time_limit"] == "0-01:30:00"
    found = found["cluster"]
    assert (found["gpu_type"], found["gpus_per_node"], found["slurm"]["partition"]) == ("fake", 2, "high")


def test_preset_with_named_account_is_accepted(accounting_cluster: Cluster) -> None:
    folder = make_shared_dir(accounting_cluster)
    text = write_preset(accounting_cluster, folder, "--account", ACCOUNT)
    assert yaml.safe_load(text)["cluster"]["slurm"]["account"] == ACCOUNT
