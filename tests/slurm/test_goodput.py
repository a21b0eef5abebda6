"""The goodput ledger against Slurm's own accounting: what each start of a job held, whatever ended it."""

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
from tests.slurm.light.runs import LightRun, check_ledger, expected_metrics

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


def read_accounting(cluster: Cluster, job: str) -> list[tuple[float, float, float]]:
    """Submission, start and end of each start of the job, by slurmdbd."""
    words = ["sacct", "-n", "-P", "-X", "-D", "-o", "Submit,Start,End", "-j", job]
    said = cluster.run(["env", "SLURM_TIME_FORMAT=%s", *words]).stdout.split()
    found = [line.split("|") for line in said]
    return sorted((float(row[0]), float(row[1]), float(row[2])) for row in found if all(map(str.isdigit, row)))


def check_held(cluster: Cluster, run: RunDir, job: str, num_starts: int) -> None:
    """What events say was held is what Slurm billed, to 1 % and a second.

    Between a start and the next one of a requeue Slurm bills nothing while processes of the first still end
    (COMPLETING), though nobody else has the nodes: events cannot tell that time.
    """
    wait_until(lambda: len(read_accounting(cluster, job)) == num_starts, "all starts in the accounting", timeout_s=60)
    rows = read_accounting(cluster, job)
    billed = sum(end - start for _, start, end in rows)
    completing = sum(max(0.0, later[0] - row[2]) for row, later in itertools.pairwise(rows))
    ledger, holds = read_ledger(run), find_allocations(read_events(run), read_steps(run))
    assert ledger is not None
    # Slurm counts in whole seconds, and ends the job after our last word.
    slack = 0.01 * billed + 1.0
    assert billed - slack <= ledger.held_s <= billed + completing + slack, (holds, rows)


@pytest.mark.slow
def test_held_seconds_match_slurm_accounting(accounting_cluster: Cluster) -> None:
    """A killed controller, a requeue without a warning, a node without power."""
    folder = make_shared_dir(accounting_cluster) / "run"
    run = LightRun(accounting_cluster, folder, "cluster.num_nodes=1", num_steps=120, save_every=7, step_s=0.15)
    run.wait_for_training(1)
    run.kill(run.hosts(1)[0], "submitit.core._submit", newest_alone=True)
    run.wait_for_training(2)
    accounting_cluster.run(["scontrol", "requeue", run.job])
    run.wait_for_training(3)
    lost = run.hosts(3)[0]
    accounting_cluster.power_off(lost)
    run.wait_for_events("attempt/started", 4, timeout_s=300)
    assert run.wait_for_end()["state"] == "finished"
    assert run.metrics() == expected_metrics(120, 1)

    ledger = check_ledger(run)
    check_held(accounting_cluster, run.run_dir, run.job, num_starts=3)
    causes = {(charge.cause.kind, charge.cause.name): charge for charge in ledger.charges}
    assert set(causes) == {("program", ""), ("requeue", ""), ("node", lost)}, ledger.charges
    assert all(0 < charge.seconds < ledger.held_s for charge in ledger.charges)


@pytest.mark.slow
def test_slow_save_starts_in_time(cluster: Cluster, shared_dir: Path) -> None:
    """Slurm would signal 10 s before the end, and a save takes 15 s: the run has learned that when it matters."""
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
