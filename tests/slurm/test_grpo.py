"""The real trainer on two nodes of a real Slurm: Ray, vLLM and torch on CPU. Takes minutes."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import mean
from urllib.parse import urlsplit

import pytest

from slurm_rl.run_dir.run_dir import read_json
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.submitting import ROOT, run_cli, wait_for_end
from tests.whole_run import OVERRIDES, events_of, exact_rows, stage_rows

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.mark.timeout(2400)  # two complete demos share the machine
def test_concurrent_demos_learn_with_equal_metrics(cluster: Cluster, shared_dir: Path) -> None:
    nodes = ",".join(cluster.nodes[:2])
    first, second = shared_dir / "first", shared_dir / "second"
    words = ["+exp=demo", "+cluster=slurm_cpu", "trainer.num_steps=60", "logging.wandb.mode=disabled"]
    run_cli(cluster, shared_dir, *words, f"run_dir={first}", f"cluster.slurm.nodelist='{nodes}'")
    submit_plainly(cluster, shared_dir, nodes, *words, f"run_dir={second}")
    for run in (first, second):
        assert wait_for_end(run, timeout_s=1800)["state"] == "finished"
    # Concurrent runs with the same seed on shared nodes do not affect each other's numbers.
    assert exact_rows(first) == exact_rows(second)
    rows = stage_rows(first)
    rewards = [row["reward/mean"] for row in rows]
    assert len(rewards) == 60
    assert mean(rewards[-10:]) > mean(rewards[:10]) + 0.05
    assert max(row["sync/probe_difference"] for row in rows) < 1e-4
    for node in cluster.nodes:
        wait_until(lambda node=node: not cluster.leftovers(node), f"{node} to be clean")  # type: ignore[misc]


def test_requeued_run_has_identical_metrics(cluster: Cluster, shared_dir: Path, whole_run: Path) -> None:
    run = shared_dir / "run"
    run_cli(cluster, shared_dir, "+cluster=slurm_cpu", f"run_dir={run}", *OVERRIDES)
    wait_until(lambda: (run / "checkpoints" / "step-42").is_dir(), "a checkpoint", timeout_s=300)
    job = json.loads((run / "job.json").read_text())["job_id"]
    cluster.run(["scancel", "--batch", "--signal=USR2", job])
    assert wait_for_end(run, timeout_s=420)["state"] == "finished"
    assert exact_rows(run) == exact_rows(whole_run)


def test_reference_and_reward_service_run_on_their_groups(cluster: Cluster, shared_dir: Path, whole_run: Path) -> None:
    """Slurm lists the old nodes first, but the head and the policy must run on the new one."""
    run = shared_dir / "pinned"
    words = ["cluster.num_nodes=2", "+cluster.nodes.old.count=1", "+cluster.nodes.new.count=1"]
    words += ["policy.node_group=new", "rollout.node_group=new", "reference.node_group=old", "reference.num_workers=1"]
    words += ["+reward=service", "reward.service.node_group=old", "reward.service.address=cluster"]
    run_cli(cluster, shared_dir, "+cluster=slurm_cpu", f"run_dir={run}", *OVERRIDES, *words)
    assert wait_for_end(run, timeout_s=420)["state"] == "finished"
    # Placement does not change the numbers.
    assert exact_rows(run) == exact_rows(whole_run)
    hosts = {row["rank"]: row["host"] for row in events_of(run, "node/started")}
    assert hosts[0] in cluster.nodes[2:] and hosts[1] in cluster.nodes[:2]
    actors = read_json(run / "plan.json")["actors"]
    places = {(actor["role"], actor["node"]) for actor in actors}
    assert places == {("policy", 0), ("rollout", 0), ("reference", 1), ("reward", 1)}
    [ready] = events_of(run, "reward/services_ready")
    assert [urlsplit(url).hostname for url in ready["urls"]] == [cluster.ip(hosts[1])]
    assert "reward service at" in (run / "attempts" / "1" / "logs" / "reward-0.log").read_text()
    wait_until(lambda: not cluster.leftovers(hosts[1]), f"{hosts[1]} to be clean")


def submit_plainly(cluster: Cluster, folder: Path, nodes: str, *words: str) -> None:
    script = ROOT / "sbatch_templates" / "job.sbatch"
    options = ["-N2", f"--nodelist={nodes}", "--exclusive=user", "--mem=8G", "--cpus-per-task=2"]
    path = f"{Path(sys.executable).parent}:{cluster.env['PATH']}"
    done = subprocess.run(
        ["sbatch", *options, str(script), *words],
        cwd=folder,
        env={**cluster.env, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
