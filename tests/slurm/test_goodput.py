"""The goodput ledger against Slurm's own accounting: what each start of a job held, whatever ended it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.goodput.holds import find_holds
from slurm_rl.goodput.read import read_steps
from slurm_rl.report.meta import read_events
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.conftest import make_shared_dir
from tests.slurm.light.runs import LightRun, check_ledger, expected_metrics
from tests.slurm.submitting import cli

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


def read_accounting(run: LightRun) -> list[tuple[float, float]]:
    """Start and end of each start of the job, by slurmdbd."""
    words = ["sacct", "-n", "-P", "-X", "-D", "-o", "Start,End", "-j", run.job]
    said = run.cluster.run(["env", "SLURM_TIME_FORMAT=%s", *words]).stdout.split()
    found = [tuple(line.split("|")) for line in said]
    return [(float(start), float(end)) for start, end in found if start.isdigit() and end.isdigit()]


@pytest.mark.slow
def test_what_it_held_is_what_slurm_billed(accounting_cluster: Cluster) -> None:
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
    wait_until(lambda: len(read_accounting(run)) == 3, "three starts in the accounting", timeout_s=60)
    billed = sum(end - start for start, end in read_accounting(run))
    holds = find_holds(read_events(run.run_dir), read_steps(run.run_dir))
    # By events alone: our last word comes before the job's own end, and Slurm counts in whole seconds.
    assert ledger.held_s == pytest.approx(billed, rel=0.01, abs=1.0), (holds, read_accounting(run))
    # By its accounting the same seconds; what our events do not explain of them is no more than its rounding.
    told = cli(accounting_cluster, folder.parent, "goodput", str(folder), "--accounting", "--json")
    assert told.returncode == 0, told.stderr
    [exact] = json.loads(told.stdout)
    assert exact["held"] == billed == pytest.approx(sum(exact["buckets"].values()), abs=0.1)
    assert exact["buckets"]["other"] <= 0.01 * billed + 1.0, exact["buckets"]
    causes = {(charge.cause.who, charge.cause.name): charge for charge in ledger.charges}
    assert set(causes) == {("program", ""), ("requeue", ""), ("node", lost)}, ledger.charges
    assert all(0 < charge.seconds < ledger.held_s for charge in ledger.charges)


@pytest.mark.slow
def test_a_slow_save_is_begun_in_time(cluster: Cluster, shared_dir: Path) -> None:
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
    assert [charge.cause.who for charge in ledger.charges] == ["limit"]
