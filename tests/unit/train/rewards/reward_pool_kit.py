"""What the tests of the reward pool share."""

from __future__ import annotations

from typing import Any

import psutil

from slurm_rl.config.reward import RewardConfig, VerifierName
from slurm_rl.train.rewards.pool import RewardItem, RewardPool

TABLE: dict[VerifierName, str] = {
    "arithmetic": "tests.unit.train.rewards.bad_verifiers:obey",
    "format": "tests.unit.train.rewards.bad_verifiers:half",
}


def build_pool(**options: Any) -> RewardPool:
    return RewardPool(RewardConfig(**{"num_workers": 2, "timeout_s": 0.5, **options}), TABLE)


def build_items(num: int, deeds: dict[int, str]) -> list[RewardItem]:
    """Item i scores i / 1000 unless it has a deed."""
    return [RewardItem(completion=deeds.get(i, "fine"), answer=str(i)) for i in range(num)]


def workers() -> list[psutil.Process]:
    """Living children of this process; multiprocessing's own tracker stays until we end."""
    children = psutil.Process().children(recursive=True)
    return [p for p in children if "resource_tracker" not in " ".join(p.cmdline())]
