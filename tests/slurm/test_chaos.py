"""Short storms of benchmarks/chaos on the session's cluster."""

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from benchmarks.chaos.__main__ import main, parse, plan, run_storm
from benchmarks.chaos.stage import set_clocks
from slurm_rl.run_dir.jsonl import read_rows
from tests.slurm.cluster import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

# docs/reference/chaos.md promises seconds only for an idle machine.
WORDS = ["--nodes", "2", "--process-s", "600", "--node-s", "600"]


@pytest.fixture
def clock(shared_dir: Path) -> Iterator[Path]:
    with patch.dict(os.environ):
        yield set_clocks(shared_dir)


def test_three_seeded_faults_keep_one_writer(cluster: Cluster, shared_dir: Path, clock: Path) -> None:
    """Kill a rank and the trainer, then cut the controller's node off from slurmctld until Slurm marks it down.

    The job then has two live starts, but the run must have one writer.
    """
    names = ["rank/kill", "trainer/kill", "network/down"]
    args = parse([*WORDS, "--seed", "9", "--minutes", "0.25", "--every", "4", "--only", *names])
    faults = plan(args, frozenset())
    assert [fault.kind for fault in faults] == names and all(fault.waits for fault in faults)
    broken, storm = run_storm(args, cluster, None, clock, shared_dir, faults)
    assert broken == []
    assert [hit.missed for hit in storm.hits] == ["", "", ""]
    # Only Slurm has restarted the job.
    run = storm.scene.run
    (job, first), *others = run.starts
    assert others == [(job, first + 1)]
    # The start that Slurm gave up continued to train until the next start took the run's lease.
    own = [row["attempt"] for row in run.events("attempt/started") if row["slurm_restarts"] == first]
    logs = [run.run_dir.attempt(number).path / "steps.jsonl" for number in own]
    steps = [row for log in logs if log.is_file() for row in read_rows(log)]
    assert any(row["start"] > storm.hits[-1].time for row in steps)


@pytest.mark.slow
def test_seeded_storm_violates_no_guarantee(tmp_path: Path) -> None:
    """Run the documented command, with time limits for this machine."""
    words = ["--seed", "1", "--minutes", "5", "--every", "12", "--process-s", "60", "--node-s", "120"]
    assert main([*words, "--log", str(tmp_path / "log.jsonl")]) == 0
    assert (tmp_path / "log.jsonl").read_text().count('"what": "fault"') > 10
