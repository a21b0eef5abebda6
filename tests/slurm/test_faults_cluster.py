"""Faults of the cluster and of ranks under torchrun, one after the other; the run keeps its metrics.

The slowest tests wait for Slurm's timers: it checks limits every 30 s and lets a node be silent for 30 s.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.plugins.goodput.allocations import find_allocations
from slurm_rl.plugins.goodput.read import read_ledger, read_steps
from slurm_rl.run_dir.event_text import read_events
from slurm_rl.run_dir.run_dir import RunDir
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.conftest import make_shared_dir
from tests.slurm.light.runs import LightRun, check_ledger, expected_metrics, wait_until_clean

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


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


def kill_a_rank(run: LightRun, host: str) -> None:
    """SIGKILL one rank, not torchrun (its command line names the program too)."""
    found = [p for p in run.cluster.processes(host) if f"light/ranks.py {run.run_dir.path}" in p.cmdline]
    ranks = [p for p in found if "bound_torchrun" not in p.cmdline]
    assert len(ranks) == 2
    run.cluster.signal(host, ranks[0].pid, 9)


def start_ranks(cluster: Cluster, folder: Path) -> LightRun:
    return LightRun(cluster, folder / "run", "+exp=sft_tiny", "policy.num_workers=4")


def check_ranks_end(run: LightRun, num_attempts: int) -> None:
    run.check_finished(num_values=4)
    assert (run.outcomes[-1], len(run.outcomes)) == ("finished", num_attempts), (run.outcomes, run.causes)
    assert run.leftovers() == {}
    wait_until_clean(run.cluster)


def test_killed_rank_keeps_metrics(cluster: Cluster, shared_dir: Path) -> None:
    run = start_ranks(cluster, shared_dir)
    run.wait_for_training(1)
    host = run.hosts(1)[1]
    kill_a_rank(run, host)
    check_ranks_end(run, 2)
    assert f"{host}: every rank under torchrun must end in order" in run.causes[0]
    assert "was killed by SIGKILL" in run.causes[0]
    assert sorted(path.stem for path in run.run_dir.attempt(2).logs.glob("*r*.log")) == ["driver", "srun", "torchrun-1"]
    log = run.run_dir.attempt(2).log("torchrun-1").read_text()
    assert {f"rank {rank} of 4" in log for rank in (2, 3)} == {True}


@pytest.mark.slow
def test_requeue_and_stop_keep_metrics(cluster: Cluster, shared_dir: Path) -> None:
    run = start_ranks(cluster, shared_dir)
    run.wait_for_training(1)
    assert cluster.run(["scontrol", "requeue", run.job]).returncode == 0
    run.wait_for_events("attempt/started", 2)
    # Twice, while the ranks import torch: they save nothing, and the run continues.
    run.wait_for_events("torchrun/started", 2)
    run.send_stop(times=2)
    run.wait_for_training(3)
    check_ranks_end(run, 3)
    assert set(run.outcomes[:2]) <= {"lost", "checkpointed"}


def read_accounting(cluster: Cluster, job: str) -> list[tuple[float, float, float]]:
    """Return submission, start and end times of each start of the job from slurmdbd."""
    words = ["sacct", "-n", "-P", "-X", "-D", "-o", "Submit,Start,End", "-j", job]
    shown = cluster.run(["env", "SLURM_TIME_FORMAT=%s", *words]).stdout.split()
    found = [line.split("|") for line in shown]
    return sorted((float(row[0]), float(row[1]), float(row[2])) for row in found if all(map(str.isdigit, row)))


def check_held(cluster: Cluster, run: RunDir, job: str, num_starts: int) -> None:
    """Check that the held time in the events is the billed time to within 1 % and a second.

    Slurm does not bill the time after a requeue in which processes of the first start still end (COMPLETING).
    """
    wait_until(lambda: len(read_accounting(cluster, job)) == num_starts, "all starts in the accounting", timeout_s=60)
    rows = read_accounting(cluster, job)
    billed = sum(end - start for _, start, end in rows)
    completing = sum(max(0.0, later[0] - row[2]) for row, later in itertools.pairwise(rows))
    ledger, holds = read_ledger(run), find_allocations(read_events(run), read_steps(run))
    assert ledger is not None
    # Slurm counts whole seconds and ends the job after our last event.
    slack = 0.01 * billed + 1.0
    assert billed - slack <= ledger.held_s <= billed + completing + slack, (holds, rows)


@pytest.mark.slow
def test_held_seconds_match_slurm_accounting(accounting_cluster: Cluster) -> None:
    """With a killed controller, a requeue without warning, and a node without power."""
    folder = make_shared_dir(accounting_cluster) / "run"
    run = LightRun(accounting_cluster, folder, "cluster.num_nodes=1", num_steps=120, save_every=7, step_s=0.15)
    run.wait_for_training(1)
    run.kill(run.hosts(1)[0], "submitit.core._submit", newest_only=True)
    run.wait_for_training(2)
    accounting_cluster.run(["scontrol", "requeue", run.job])
    run.wait_for_training(3)
    lost = run.hosts(3)[0]
    accounting_cluster.power_off(lost)
    run.wait_for_events("attempt/started", 4, timeout_s=300)
    run.check_finished(120)
    ledger = check_ledger(run)
    check_held(accounting_cluster, run.run_dir, run.job, num_starts=3)
    causes = {(charge.cause.kind, charge.cause.name): charge for charge in ledger.charges}
    assert set(causes) == {("program", ""), ("requeue", ""), ("node", lost)}, ledger.charges
    assert all(0 < charge.seconds < ledger.held_s for charge in ledger.charges)


@pytest.mark.slow
def test_slow_save_starts_in_time(cluster: Cluster, shared_dir: Path) -> None:
    """Slurm would signal 10 s before the end, but a save takes 15 s, which the run has measured by then."""
    words = ("cluster.num_nodes=1", "job.time_limit=3")
    hurried: dict[str, Any] = {"num_steps": 400, "step_s": 0.5, "save_every": 4, "save_s": 15.0}
    run = LightRun(cluster, shared_dir / "run", *words, net_s=10, **hurried)
    run.wait_for_events("job/requeued", timeout_s=240)
    [raised] = run.events("job/stop_raised")
    assert 95 <= raised["lead_s"] <= 130 and raised["measured"]["save_s"] >= 15.0
    [ended] = run.events("attempt/ended")
    started = run.events("attempt/started")[0]
    assert ended["outcome"] == "checkpointed" and ended["time"] < started["ends_at"]
    assert run.events("checkpoint/saved")[-1]["time"] > raised["time"]
    run.cluster.run(["scancel", run.job])
    ledger = check_ledger(run)
    assert [charge.cause.kind for charge in ledger.charges] == ["limit"]
