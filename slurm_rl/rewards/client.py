"""HTTP client of reward services that speak OpenRLHF's protocol.

    with RewardClient(config.service, urls=lambda: ["http://node7:5000/get_reward"], token=None) as client:
        results = client.score(items)                             # one result per item, in order

Reactions to errors, until `deadline_s`:

    no connection, timeout, 429, 503         retry at the next service, with exponential backoff
    other 5xx, or an invalid answer          the same; after 5 tries the items are sent one by one, and an item that
                                             fails 5 times is a failure with the cause "service"
    413                                      split the request
    422                                      split the request, down to the rejected rows
    401, 403, 404, other 4xx                 RewardError with the service's message
"""

from __future__ import annotations

import itertools
import json
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from slurm_rl.config.reward import RewardServiceConfig
from slurm_rl.errors import RewardError
from slurm_rl.rewards.protocol import build_request, parse_answer
from slurm_rl.rewards.results import Failure, RewardItem, RewardResult

_TRIES = 5
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_CONNECT_S = 10.0


class _NoRewards(Exception):
    """An answer without rewards; `status` is that of HTTP, 0 without an answer."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class RewardClient:
    """Send requests to the services in turn; a context manager, thread-safe.

    Args:
        urls: returns the current addresses; called before every try.
        check: called before every pause; raises if retrying is pointless.
    """

    def __init__(
        self,
        config: RewardServiceConfig,
        urls: Callable[[], Sequence[str]],
        token: str | None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._config, self._urls, self._check = config, urls, check
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._turn = itertools.count()
        self._http: Any = None
        self._threads = ThreadPoolExecutor(config.num_connections, thread_name_prefix="reward-client")
        self._closing = threading.Event()

    def __enter__(self) -> RewardClient:
        import httpx

        limits = httpx.Limits(
            max_connections=self._config.num_connections, max_keepalive_connections=self._config.num_connections
        )
        timeout = httpx.Timeout(self._config.request_timeout_s, connect=_CONNECT_S)
        # A cluster's HTTP proxy for the outside world must not stand between two nodes of it.
        self._http = httpx.Client(limits=limits, timeout=timeout, trust_env=False)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._http.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        """Return one result per item, in order, within about `deadline_s`.

        Raises:
            RewardError: a request had no answer within the deadline, or was refused for good.
        """
        # Every service gets a share of a small batch too.
        size = min(self._config.items_per_request, math.ceil(len(items) / max(1, len(self._urls())))) or 1
        deadline = time.monotonic() + self._config.deadline_s
        futures = [
            self._threads.submit(self._score, items[first : first + size], deadline)
            for first in range(0, len(items), size)
        ]
        try:
            return [result for future in futures for result in future.result()]
        finally:
            for future in futures:
                future.cancel()

    def _score(self, items: Sequence[RewardItem], deadline: float) -> list[RewardResult]:
        num_refusals = 0
        turn = next(self._turn)
        for attempt in itertools.count():
            urls = self._urls()
            url = urls[(turn + attempt) % len(urls)]
            try:
                return self._ask(url, items, deadline)
            except _NoRewards as error:
                if error.status in (413, 422):
                    half = len(items) // 2
                    if half:
                        return self._score(items[:half], deadline) + self._score(items[half:], deadline)
                    if error.status == 413:
                        raise self._refused(url, "413, a single completion is too large") from None
                    return [Failure("reference", str(error)).result(items[0])]
                num_refusals += error.status not in (0, 429, 503)
                if num_refusals >= _TRIES:
                    if len(items) == 1:
                        return [Failure("service", str(error)).result(items[0])]
                    return [result for item in items for result in self._score([item], deadline)]
                self._pause(attempt, deadline, error, url)
        raise AssertionError("unreachable")

    def _pause(self, attempt: int, deadline: float, error: _NoRewards, url: str) -> None:
        self._check()
        # Jitter: clients that were rejected together should not retry together.
        pause_s = min(_FIRST_PAUSE_S * 2 ** min(attempt, 10), _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)
        if self._closing.is_set() or time.monotonic() + pause_s > deadline:
            raise RewardError(
                f"a reward service must answer within reward.service.deadline_s = {self._config.deadline_s:g}",
                seen=f"{_hide_password(url)}: {error}",
                action="check whether it runs (GET /health) and read its log; raise the deadline if it is only slow",
            )
        self._closing.wait(pause_s)

    def _ask(self, url: str, items: Sequence[RewardItem], deadline: float) -> list[RewardResult]:
        import httpx

        timeout_s = max(0.1, min(self._config.request_timeout_s, deadline - time.monotonic()))
        try:
            answer = self._http.post(
                url,
                content=json.dumps(build_request(items)).encode(),
                headers=self._headers,
                timeout=httpx.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s)),
            )
        except httpx.InvalidURL as error:
            raise self._refused(url, str(error)) from None
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client was closed meanwhile
            raise _NoRewards(0, f"{type(error).__name__} {error}") from None
        status = answer.status_code
        words = f"{status} {answer.text[:300]}"
        if status in (413, 422, 429) or status >= 500:
            raise _NoRewards(status, words)
        if status != 200:
            raise self._refused(url, words)
        try:
            return parse_answer(answer.content, items)
        except RewardError as error:
            raise _NoRewards(status, str(error)) from None

    def _refused(self, url: str, words: str) -> RewardError:
        hint = "; check the token" if words[:3] in ("401", "403") else ""
        return RewardError(
            "a reward service must take the run's requests",
            seen=f"{_hide_password(url)}: {words}",
            action=f"compare the address with the service's{hint}",
        )


def _hide_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0]
    return f"{scheme}://{rest[host.rfind('@') + 1 :]}"
