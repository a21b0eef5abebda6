"""Ranks under torchrun on a real Slurm: 2 nodes x 2 ranks, harmed, end with the numbers of an undisturbed run.

The ranks are tests/slurm/light/ranks.py: real torch.distributed, real checkpoints, no model.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.light.runs import LightRun, expected_metrics, wait_until_clean

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

NUM_STEPS = 60


def kill_a_rank(run: LightRun, host: str) -> None:
    """kill -9 of one rank; torchrun's own command line names the program too."""
    found = [p for p in run.cluster.processes(host) if f"light/ranks.py {run.run_dir.path}" in p.cmdline]
    ranks = [p for p in found if "torch.distributed.run" not in p.cmdline]
    assert len(ranks) == 2
    run.cluster.signal(host, ranks[0].pid, 9)


def test_a_killed_rank_a_requeue_and_a_stop_leave_the_numbers_as_they_are(cluster: Cluster, shared_dir: Path) -> None:
    run = LightRun(cluster, shared_dir / "run", "+exp=sft_tiny", "policy.num_workers=4", num_steps=NUM_STEPS)
    run.wait_for_training(1)
    host = run.hosts(1)[1]
    kill_a_rank(run, host)
    run.wait_for_training(2)
    assert f"{host}: every rank under torchrun must end in order" in run.causes[0]
    assert "was killed by SIGKILL" in run.causes[0]
    assert cluster.run(["scontrol", "requeue", run.job]).returncode == 0
    run.wait_for_events("attempt/started", 3)
    # Twice, while the ranks import torch: they save nothing, and nothing is lost.
    run.wait_for_events("torchrun/started", 3)
    run.send_stop(times=2)
    run.wait_for_training(4)
    end = run.wait_for_end()
    assert end["state"] == "finished", (end, run.causes)
    assert run.outcomes[0] == "failed" and run.outcomes[-1] == "finished", (run.outcomes, run.causes)
    assert run.outcomes[1] in ("lost", "checkpointed")
    assert run.outcomes[2] in ("lost", "checkpointed")
    assert run.metrics() == expected_metrics(NUM_STEPS, num_nodes=4)
    assert sorted(path.stem for path in run.run_dir.attempt(4).logs.glob("*r*.log")) == ["driver", "srun", "torchrun-1"]
    log = run.run_dir.attempt(4).log("torchrun-1").read_text()
    assert {f"rank {rank} of 4" in log for rank in (2, 3)} == {True}
    assert run.leftovers() == {}
    wait_until_clean(cluster)
