from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray

import slurm_rl
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.workers.ray_driver import Actor, Cluster
from slurm_rl.workers.train_workers import WorkerGroup

NOBODY: Any = None


def build_groups(num_groups: int, group_size: int, prompt: int, completion: int) -> list[TrainSequence]:
    return [
        TrainSequence(token_ids=np.asarray([group] * prompt + [9] * completion), trained_from=prompt)
        for group in range(num_groups)
        for _ in range(group_size)
    ]


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_groups_stay_together_and_micro_batches_within_budget(num_workers: int) -> None:
    sequences = build_groups(6, 4, prompt=20, completion=5)
    workers = [Actor(f"policy-{i}", NOBODY) for i in range(num_workers)]
    shared = WorkerGroup(NOBODY, workers, 80, 1.0, "policy", prefix_sharing=True).spread(sequences)
    apart = WorkerGroup(NOBODY, workers, 80, 1.0, "policy").spread(sequences)
    assert sorted(id(item) for share in shared for batch in share for item in batch) == sorted(map(id, sequences))
    assert len({len(share) for share in shared}) == 1
    groups = [[int(item.token_ids[0]) for item in batch] for share in shared for batch in share]
    assert all(batch.count(group) == 4 for batch in groups for group in batch)
    # 20 + 4 * 5 tokens per group instead of 4 * 25: a batch fits two groups, or three separate sequences.
    assert max(len(share) for share in shared) < max(len(share) for share in apart)


def test_actors_import_code_of_driver_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray passes the directory of `ray.init` to its workers; in a checkout they would import code under edit."""
    seen: list[Path] = []
    monkeypatch.setattr(ray, "init", lambda **_: seen.append(Path.cwd()))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.chdir(tmp_path)
    cluster: Any = Cluster.__new__(Cluster)
    cluster.plan, cluster.stop = SimpleNamespace(limits=SimpleNamespace(start_timeout_s=1.0)), None
    cluster.nodes = SimpleNamespace(namespace=None, wait=lambda deadline, stop: None)
    cluster.connect()
    assert seen == [Path(slurm_rl.__file__).parents[1]]
    assert Path.cwd() == tmp_path
