"""Faults of the cluster, one after the other, with a real Ray cluster and the light trainer.

The slowest tests wait for Slurm's timers: it checks limits every 30 s and lets a node be silent for 30 s.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.light.runs import LightRun, check_ledger, expected_metrics, wait_until_clean

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]


def check_end(run: LightRun, num_steps: int) -> None:
    run.check_finished(num_steps)
    wait_until_clean(run.cluster)
    check_ledger(run)


@contextmanager
def grace_time(cluster: Cluster, seconds: int) -> Iterator[None]:
    cluster.run(["scontrol", "update", "partition=main", f"GraceTime={seconds}"])
    yield
    cluster.run(["scontrol", "update", "partition=main", "GraceTime=10"])


@pytest.mark.slow
def test_preemption_without_warning_resumes(cluster: Cluster, shared_dir: Path) -> None:
    with cluster.changed({"SlurmctldParameters": "cloud_dns"}), grace_time(cluster, 0):
        run = LightRun(cluster, shared_dir / "run", num_steps=60)
        run.wait_for_training(1)
        run.preempt()
        run.wait_for_events("attempt/started", 2)
        check_end(run, 60)
    assert run.outcomes[0] in ("checkpointed", "lost")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1], ids=["head", "worker"])
def test_node_without_power_is_replaced_by_requeue(cluster: Cluster, shared_dir: Path, victim: int) -> None:
    run = LightRun(cluster, shared_dir / "run", num_steps=60)
    run.wait_for_training(1)
    lost = run.hosts(1)[victim]
    cluster.power_off(lost)
    run.wait_for_events("attempt/started", 2, timeout_s=300)
    check_end(run, 60)
    number = len(run.events("preflight/passed"))
    assert lost not in run.hosts(number)


@pytest.mark.slow
def test_lost_controller_node_is_replaced_by_spare(cluster: Cluster, shared_dir: Path) -> None:
    """Slurm lets such a job continue without its batch step, and the node stays down."""
    run = LightRun(cluster, shared_dir / "run", "job.num_spare_nodes=1", num_steps=80)
    run.wait_for_training(1)
    lost = run.hosts(1)[0]
    cluster.power_off(lost)
    run.wait_for_events("attempt/started", 2, timeout_s=240)
    check_end(run, 80)
    assert run.starts == [(run.job, 0), (run.job, 1)]
    assert lost not in run.hosts(2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_time_limits_keep_metrics(cluster: Cluster, shared_dir: Path) -> None:
    # With a limit of 3 minutes and a lead of 30 s, Slurm signals after 120 to 150 s. With 2 minutes, a slow start of
    # Ray could leave no time to train, and a run that saves nothing twice ends. The number of steps depends on the
    # machine, so the test ends the third attempt.
    words = ("job.time_limit=3", "job.checkpoint_lead_s=30")
    run = LightRun(cluster, shared_dir / "run", *words, num_steps=10_000, step_s=0.5)
    run.wait_for_events("attempt/started", 3, timeout_s=480)
    first, second = (event["step"] for event in run.events("job/requeued"))
    run.wait_for_step(second + 10)
    cluster.run(["scancel", run.job])
    end = run.wait_for_end()
    assert (end["state"], run.outcomes[:2]) == ("interrupted", ["checkpointed", "checkpointed"]), (end, run.causes)
    logged = run.metrics()
    assert 0 < first < second < len(logged) and logged == expected_metrics(len(logged), run.plan.num_nodes)
    wait_until_clean(cluster)
    check_ledger(run)
