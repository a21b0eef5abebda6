"""`submit` refuses jobs that the cluster would reject or never start, before it writes or queues anything."""

import json
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.conftest import make_shared_dir
from tests.slurm.submitting import cli, job_id, queue, refused, run_cli

pytestmark = pytest.mark.slurm

CPU, H100 = "+cluster=slurm_cpu", "+cluster=nvidia_h100"


def refuse(cluster: Cluster, *words: str) -> str:
    """Submit, check that nothing was left behind, and return the error."""
    folder = make_shared_dir(cluster)
    done = refused(cluster, folder, "+exp=demo", *words)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert list(folder.iterdir()) == []
    assert queue(cluster) == ""
    return done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([CPU, "cluster.slurm.partition=mian"], ["Invalid partition", "choose one of: main, high"]),
        ([H100], ["h100", "the nodes have 2 fake", "cluster.gpu_type"]),
        ([H100, "cluster.gpu_type=fake"], ["got 8; the nodes have 2 fake", "cluster.gpus_per_node"]),
        ([CPU, "cluster.num_nodes=5"], ["got 5; it has 4", "cluster.num_nodes"]),
        ([CPU, "cluster.cpus_per_node=64"], ["got 64; the nodes have 4", "cluster.cpus_per_node"]),
        ([CPU, "cluster.mem_gb_per_node=900"], ["got 900 GB; the nodes have 11 GB"]),
        ([CPU, "cluster.slurm.reservation=none"], ["Requested reservation is invalid"]),
        ([CPU, "cluster.slurm.nodelist=nowhere"], ["Invalid node name"]),
        ([CPU, "+cluster.slurm.extra.frobnicate=1"], ["unrecognized option", "frobnicate"]),
        ([CPU, "cluster.slurm.dependency=soon"], ["dependency"]),
    ],
)
def test_invalid_request_is_refused_before_submission(
    session_cluster: Cluster, words: list[str], expected: list[str]
) -> None:
    error = refuse(session_cluster, *words)
    for text in expected:
        assert text in error


@pytest.mark.versions
def test_gpu_type_uses_spelling_of_site(cluster: Cluster) -> None:
    words = [H100, "cluster.gpu_type=FAKE", "cluster.gpus_per_node=2", "cluster.cpus_per_node=4"]
    words += ["cluster.mem_gb_per_node=1", "+cluster.slurm.extra.hold=true", "run_dir=waits"]
    folder = make_shared_dir(cluster)
    done = run_cli(cluster, folder, "+exp=demo", *words)
    assert "gpu:fake:2, as this cluster spells gpu:FAKE:2" in done.stderr
    shown = cluster.run(["scontrol", "show", "job", job_id(folder / "waits")]).stdout
    assert "gres:gpu:fake:2" in shown or "gres/gpu:fake:2" in shown, shown
    assert json.loads((folder / "waits" / "plan.json").read_text())["sbatch"]["gres"] == "gpu:fake:2"


def test_time_limit_above_partition_is_refused(cluster: Cluster) -> None:
    """Slurm itself would leave such a job pending forever."""
    cluster.run(["scontrol", "update", "partitionname=main", "MaxTime=60"])
    try:
        assert "120 min > 60 min" in refuse(cluster, CPU, "job.time_limit=2:00:00")
    finally:
        cluster.run(["scontrol", "update", "partitionname=main", "MaxTime=INFINITE"])


def test_unknown_account_is_refused(accounting_cluster: Cluster) -> None:
    assert "nvalid account" in refuse(accounting_cluster, CPU, "cluster.slurm.account=nobody")


def test_submit_without_slurm_suggests_local_cluster(cluster: Cluster, tmp_path: Path) -> None:
    done = cli(cluster, tmp_path, "+exp=demo", CPU, env={"PATH": str(tmp_path)})
    assert done.returncode == 2
    assert "must be on PATH" in done.stderr
    assert "+cluster=local" in done.stderr
    assert list(tmp_path.iterdir()) == []
