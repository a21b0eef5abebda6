"""The goodput ledger agrees with Slurm's accounting on the held time of each start of a job."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.plugins.goodput.allocations import find_allocations
from slurm_rl.plugins.goodput.read import read_ledger, read_steps
from slurm_rl.run_dir.event_text import read_events
from slurm_rl.run_dir.run_dir import RunDir
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.conftest import make_shared_dir
from tests.slurm.light.runs import LightRun, check_ledger

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


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
