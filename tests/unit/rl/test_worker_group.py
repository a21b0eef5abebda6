from typing import Any

import numpy as np
import pytest

from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.workers.ray_driver import Actor
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


def test_oversized_group_is_split() -> None:
    sequences = build_groups(1, 4, prompt=20, completion=5)
    [share] = WorkerGroup(NOBODY, [Actor("policy-0", NOBODY)], 30, 1.0, "policy", prefix_sharing=True).spread(sequences)
    assert [len(batch) for batch in share] == [2, 2]
