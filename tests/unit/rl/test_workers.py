from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray

import slurm_rl
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.load import load_config
from slurm_rl.config.parallel import ParallelDims, build_parallel_dims
from slurm_rl.workers.ray_driver import Actor, Cluster
from slurm_rl.workers.train_workers import ReferenceWorker, WorkerGroup
from tests.unit.rl.fake_ray import FakeCluster, actors_of

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


class Rank:
    """Stand-in of a policy worker: its logprobs are the numbers of the sequences, and it records its calls."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def logprobs(self, batches: list[list[TrainSequence]]) -> list[list[Any]]:
        self.seen.append([int(item.token_ids[0]) for batch in batches for item in batch])
        return [[item.token_ids[:1] for item in batch] for batch in batches]

    def train(self, batches: list[list[TrainSequence]]) -> dict[str, float]:
        return {"loss": float(sum(len(batch) for batch in batches))}


def test_ranks_of_context_group_get_same_sequences() -> None:
    ranks = [Rank() for _ in range(4)]
    cluster: Any = FakeCluster()
    group = WorkerGroup(cluster, actors_of("policy", *ranks), 30, 1.0, "policy", context=2)
    sequences = build_groups(6, 1, prompt=4, completion=5)
    assert [int(found[0]) for found in group.compute("logprobs", sequences)] == list(range(6))
    assert ranks[0].seen == ranks[1].seen and ranks[2].seen == ranks[3].seen
    assert sorted(ranks[0].seen[0] + ranks[2].seen[0]) == list(range(6))
    assert group.train("train", sequences) == {"loss": 3.0}


def test_reference_with_own_gpus_is_whole() -> None:
    config = load_config(["+exp=demo", "policy.context_parallel=2", "policy.num_replicas=2"])
    assert build_parallel_dims(ReferenceWorker(config, None).config.policy, 1) == ParallelDims(1, 1)


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
