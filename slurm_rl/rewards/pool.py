"""Scores completions in worker processes, so that a verifier that hangs or crashes costs one item.

with RewardPool(config.reward) as pool:
    results = pool.score(items)                               # one result an item, in order
FailureWatch(config.reward.max_failure_rate).check(results)   # RewardError when too many failed
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType

from slurm_rl.config.reward import RewardConfig
from slurm_rl.rewards.processes import VerifierProcesses
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.rewards.scoring import Scoring
from slurm_rl.rewards.verifiers import choose_verifiers

__all__ = ["RewardItem", "RewardPool", "RewardResult"]

_CHUNK_SIZE = 64


class RewardPool:
    """Processes that run the verifiers of `config`; a context manager. Threads that score take turns.

    Args:
        config: verifiers with their weights, number of workers, deadline of one item.
        table: verifier name to `module:function`; a test puts verifiers that misbehave here.
    """

    def __init__(self, config: RewardConfig, table: Mapping[str, str] | None = None) -> None:
        chosen, self._weights = choose_verifiers(config, table)
        self._config = config
        self._processes = VerifierProcesses(config.num_workers, chosen, config.start_timeout_s)
        self._turn = threading.Lock()

    def __enter__(self) -> RewardPool:
        """Start and warm the workers; RewardError when they are not up in time."""
        self._processes.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.stop()

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        """Score items; ends in bounded time whatever the verifiers do.

        Returns:
            One result an item, in the order of `items`; a failed one has a cause in place of a value.

        Raises:
            DataError: a reference answer is one that nothing could be judged by.
            RewardError: the processes kept dying without any item being scored.
        """
        # A short batch is spread over all workers rather than given to one.
        chunk_size = min(_CHUNK_SIZE, math.ceil(len(items) / self._config.num_workers)) or 1
        with self._turn:
            return Scoring(self._processes, items, self._weights, self._config.timeout_s).run(chunk_size)
