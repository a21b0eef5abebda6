"""Replies that have ended, until the driver takes them: the engine's side of rl/rollout/replies.py."""

from __future__ import annotations

import queue
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from slurm_rl.rewards.values import describe_error
from slurm_rl.rollout.reply_request import Refused, ReplyRequest
from slurm_rl.rollout.vllm.continuous import ContinuousEngine, SampledTokens


class EndedReplies:
    """Single completions of requests that come at any time."""

    def __init__(self, engine: ContinuousEngine) -> None:
        self._engine = engine
        self._ended: defaultdict[str, queue.SimpleQueue[tuple[ReplyRequest, Future[Any]]]] = defaultdict(
            queue.SimpleQueue
        )

    def begin(
        self, client: str, requests: Sequence[ReplyRequest], prompts: Sequence[dict[str, Any]], params: Sequence[Any]
    ) -> list[Refused]:
        """Have replies sampled for `client`; return the requests that vLLM refused."""
        ended, refused = self._ended[client], list[Refused]()
        for request, future in zip(requests, self._engine.begin(prompts, params), strict=True):
            if future.done() and (error := future.exception()) is not None and not self._engine.is_broken:
                refused.append((request.episode, describe_error(error, 600)))
            else:
                future.add_done_callback(lambda it, request=request: ended.put((request, it)))  # type: ignore[misc]
        return refused

    def take(self, client: str, wait_s: float, linger_s: float) -> list[tuple[ReplyRequest, SampledTokens]]:
        """Those that have ended since the last call; waits `wait_s` for the first, `linger_s` more for others."""
        waiting = self._ended[client]
        try:
            ended = [waiting.get(timeout=wait_s)]
        except queue.Empty:
            return []
        time.sleep(linger_s)
        while not waiting.empty():
            ended.append(waiting.get())
        return [(request, future.result().samples[0]) for request, future in ended]
