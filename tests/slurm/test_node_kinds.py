"""Several node types in one run, as a heterogeneous Slurm job, from submission through a requeue to its end."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from slurm_rl.run_dir.run_dir import read_json
from tests.slurm.cluster import Cluster
from tests.slurm.light.runs import LightRun, wait_until_clean
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import cli, finish, job_id, submit, wait_for_end, wait_for_step
from tests.whole_run import events_of

pytestmark = pytest.mark.slurm

# Slurm lists the old nodes first, but the head and the policy must run on the new one. The third type has no GPU.
KINDS = [
    "cluster.num_nodes=3",
    "cluster.accelerator=nvidia",
    "cluster.gpus_per_node=2",
    "rollout.colocate=true",
    "policy.node_group=new",
    "+cluster.nodes.old={count: 1, gpus_per_node: 1}",
    "+cluster.nodes.new={count: 1, cpus_per_node: 1}",
    "+cluster.nodes.cpu={count: 1, gpus_per_node: 0, partition: main, mem_gb_per_node: 2}",
    # nvidia-smi is not installed.
    "preflight.level=off",
]


def hosts_of(run: Path, attempt: int) -> list[str]:
    return [read_json(run / "attempts" / str(attempt) / f"node-{rank}.json")["host"] for rank in range(3)]


@pytest.mark.versions
def test_three_type_job_requeues_cancels_resumes_and_finishes(cluster: Cluster, shared_dir: Path) -> None:
    run = shared_dir / "run"
    submit(cluster, run, make_light_python(shared_dir), *KINDS, f"+cluster.env.DEVICES={cluster.root}/dev")
    wait_for_step(run)
    hosts = hosts_of(run, 1)
    assert hosts[0] in cluster.nodes[2:] and hosts[1] in cluster.nodes[:2], hosts
    assert f"running: on {hosts[0]}, attempt 1" in cli(cluster, shared_dir, "status", str(run)).stdout
    assert "sees 0,1 opens " in (run / "attempts" / "1" / "logs" / "driver.log").read_text()
    for host, number in zip(hosts, (2, 1, 0), strict=True):
        ray = [process.cmdline for process in cluster.processes(host) if "ray_start" in process.cmdline]
        assert ray and all(f"--num-gpus={number} " in cmdline for cmdline in ray), ray
    # The signal that Slurm sends before the time limit.
    cluster.run(["scancel", "--batch", "--signal=USR2", job_id(run)])
    wait_for_step(run, attempt=2)
    assert cli(cluster, shared_dir, "cancel", str(run)).returncode == 0
    assert wait_for_end(run)["state"] == "interrupted"
    assert cli(cluster, shared_dir, "resume", str(run)).returncode == 0
    wait_for_step(run, attempt=3)
    finish(run)
    started = events_of(run, "attempt/started")
    assert [row["gpus"] for row in started] == [3, 3, 3] and all("start_time" in row for row in started)
    wait_until_clean(cluster)


@pytest.mark.slow
def test_ray_spans_types_and_requeue_keeps_metrics(cluster: Cluster, shared_dir: Path) -> None:
    """Two reward services run on the old nodes; one of them is killed."""
    kinds = ["+cluster.nodes.old={count: 2, cpus_per_node: 2}", "+cluster.nodes.new={count: 1, cpus_per_node: 1}"]
    words = ["cluster.num_nodes=3", *kinds, "policy.node_group=new", "+reward=service"]
    words += ["reward.service.node_group=old", "reward.service.num_replicas=2", "reward.service.address=cluster"]
    run = LightRun(cluster, shared_dir / "run", *words, num_steps=40)
    run.wait_for_training(1)
    [ready] = run.events("reward/services_ready")
    hosts = run.hosts(1)
    assert [urlsplit(url).hostname for url in ready["urls"]] == [cluster.ip(host) for host in hosts[1:]]
    service, *_ = [process for process in cluster.processes(hosts[2]) if "slurm_rl.rewards.service" in process.cmdline]
    cluster.signal(hosts[2], service.pid, 9)
    assert run.wait_for_events("reward/service_died")[0]["how"] == "exit status -9"
    run.wait_for_events("reward/service_up", 3)
    run.send_stop()
    run.check_finished(40)
    assert run.outcomes == ["checkpointed", "finished"]
    for attempt in (1, 2):
        hosts = run.hosts(attempt)
        assert hosts[0] in cluster.nodes[2:] and set(hosts[1:]) == set(cluster.nodes[:2])
    wait_until_clean(cluster)
