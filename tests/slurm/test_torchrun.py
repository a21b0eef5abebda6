"""Faults of ranks under torchrun on a real Slurm (2 nodes x 2 ranks) do not change the metrics.

The ranks are tests/slurm/light/ranks.py: real torch.distributed, real checkpoints, no model.
"""

from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.light.runs import LightRun, wait_until_clean

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]


def kill_a_rank(run: LightRun, host: str) -> None:
    """SIGKILL one rank, not torchrun (its command line names the program too)."""
    found = [p for p in run.cluster.processes(host) if f"light/ranks.py {run.run_dir.path}" in p.cmdline]
    ranks = [p for p in found if "bound_torchrun" not in p.cmdline]
    assert len(ranks) == 2
    run.cluster.signal(host, ranks[0].pid, 9)


def start(cluster: Cluster, folder: Path) -> LightRun:
    return LightRun(cluster, folder / "run", "+exp=sft_tiny", "policy.num_workers=4")


def check_end(run: LightRun, num_attempts: int) -> None:
    run.check_finished(num_values=4)
    assert (run.outcomes[-1], len(run.outcomes)) == ("finished", num_attempts), (run.outcomes, run.causes)
    assert run.leftovers() == {}
    wait_until_clean(run.cluster)


def test_killed_rank_keeps_metrics(cluster: Cluster, shared_dir: Path) -> None:
    run = start(cluster, shared_dir)
    run.wait_for_training(1)
    host = run.hosts(1)[1]
    kill_a_rank(run, host)
    check_end(run, 2)
    assert f"{host}: every rank under torchrun must end in order" in run.causes[0]
    assert "was killed by SIGKILL" in run.causes[0]
    assert sorted(path.stem for path in run.run_dir.attempt(2).logs.glob("*r*.log")) == ["driver", "srun", "torchrun-1"]
    log = run.run_dir.attempt(2).log("torchrun-1").read_text()
    assert {f"rank {rank} of 4" in log for rank in (2, 3)} == {True}


@pytest.mark.slow
def test_requeue_and_stop_keep_metrics(cluster: Cluster, shared_dir: Path) -> None:
    run = start(cluster, shared_dir)
    run.wait_for_training(1)
    assert cluster.run(["scontrol", "requeue", run.job]).returncode == 0
    run.wait_for_events("attempt/started", 2)
    # Twice, while the ranks import torch: they save nothing, and the run continues.
    run.wait_for_events("torchrun/started", 2)
    run.send_stop(times=2)
    run.wait_for_training(3)
    check_end(run, 3)
    assert set(run.outcomes[:2]) <= {"lost", "checkpointed"}
