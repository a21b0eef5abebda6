"""`submit` refuses jobs that the cluster would reject or never start, before it writes or queues anything.

Names with shell, Slurm or Hydra syntax work or are refused too.
"""

import json
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.conftest import make_shared_dir
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import cli, finish, job_id, queue, quote, refused, run_cli, submit, wait_for_step

pytestmark = pytest.mark.slurm

CPU, H100 = "+cluster=slurm_cpu", "+cluster=nvidia_h100"


def refuse(cluster: Cluster, *words: str) -> str:
    """Submit, check that nothing was left behind, and return the error."""
    folder = make_shared_dir(cluster)
    done = refused(cluster, folder, "+exp=demo", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("slurm_rl: ") and "Traceback" not in done.stderr
    assert refused(cluster, folder, "plan", "+exp=demo", *words).stderr == done.stderr
    assert list(folder.iterdir()) == []
    assert queue(cluster) == ""
    return done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([CPU, "cluster.slurm.partition=mian"], ["Invalid partition", "choose one of: ", "main", "high"]),
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


def test_run_in_hostile_folder_finishes(cluster: Cluster, shared_dir: Path) -> None:
    """Spaces, quotes, `$()` and more in the run directory, the comment and the path of Python."""
    folder = shared_dir / """a b'c"d;$(touch pwned)`touch pwned`&|<>*?[x]{y}~#!é"""
    folder.mkdir()
    run = folder / "run $(touch pwned)"
    comment = """it's "mine" $(touch pwned); touch pwned `touch pwned` %j \\\\n"""
    submit(cluster, run, make_light_python(folder), f"cluster.slurm.comment={quote(comment)}")
    wait_for_step(run)
    assert "running" in cli(cluster, folder, "status", str(run)).stdout
    assert "resumes after" in cli(cluster, folder, "logs", str(run)).stdout
    shown = cluster.run(["scontrol", "show", "job", "-o"]).stdout
    assert comment.replace("\\\\", "\\") in shown or "it's" in shown
    finish(run)
    assert {path.stem for path in (run / "attempts" / "1" / "logs").glob("node-*.log")} == {"node-0", "node-1"}
    assert list(shared_dir.rglob("pwned")) == []


@pytest.mark.parametrize(
    "word",
    [
        "run_dir='a%jb'",
        r"run_dir='a\\b'",
        "run_dir='a\nb'",
        "run_dir='a\x1b[31mb'",
        "name='a b'",
        "name='$(touch pwned)'",
        "name=--wrap",
        "cluster.slurm.partition='$(touch pwned)'",
        "cluster.slurm.partition='main --wrap=true'",
        "cluster.slurm.partition='a\nb'",
        "cluster.slurm.comment='a\nb'",
        "cluster.slurm.nodelist='$(touch pwned)'",
        "cluster.slurm.dependency='`touch pwned`'",
        "+cluster.slurm.extra.wrap='touch pwned'",
        "+cluster.slurm.extra.test_only=true",
        "+cluster.slurm.extra={'--wrap': 'touch pwned'}",
        "cluster.env={'A=B': x}",
        "cluster.python='a\nb'",
        "job.time_limit='1; touch pwned'",
    ],
)
def test_hostile_input_is_refused_with_cause(session_cluster: Cluster, word: str) -> None:
    refuse(session_cluster, CPU, word)
