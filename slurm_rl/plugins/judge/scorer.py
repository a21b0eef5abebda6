"""Score completions by the replies of a language model.

A vote is one reply. Requests that fail for a moment (429, 5xx, no connection) are retried with backoff, or after the
time in Retry-After, by the openai client. A completion without `votes` valid verdicts is a failure:

    hang         no verdict within reward.judge.deadline_s
    service      the API refused this request, or its answer is not one
    bad score    none of `tries` replies had a verdict

The API key stays in the environment of this process; it is in no file, message or log.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

from slurm_rl.config.judge import JudgeConfig
from slurm_rl.config.user_files.load import import_heavy
from slurm_rl.data.lines import shorten
from slurm_rl.errors import RewardError
from slurm_rl.plugins.judge.replies import Replies, content_key
from slurm_rl.plugins.judge.verdict import Verdict, agreement, render_prompt
from slurm_rl.rewards.results import Failure, RewardItem, RewardResult
from slurm_rl.run_dir.run_dir import RunDir, append_event

_RETRIES = 1000
"""The deadline ends retries earlier."""
_REFUSALS = (401, 403, 404)
"""Statuses that neither a retry nor another completion changes."""
_SHOWN_CHARS = 300
_STOP_S = 5.0
_PAUSE_S = 1.0
_CHECK_S = 5.0


class NoVerdict(Exception):
    """The reason why the last reply of a vote has no verdict."""


@contextmanager
def open_judge(
    config: JudgeConfig,
    run: RunDir,
    urls: Sequence[str] = (),
    token: str | None = None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[JudgeScorer]:
    """Open the judge of a run; record its requests and cost at the end.

    Args:
        urls: servers of the run; empty: reward.judge.url.
        token: their key; None: that of reward.judge.api_key.
        check: called while requests are in flight; raises if a server was abandoned.

    Raises:
        RewardError: the API key is not in the environment, or the API does not answer within deadline_s.
        MissingLibraryError: the openai client is not installed.
    """
    key = token or (os.environ.get(config.api_key, "") if config.api_key else "none")
    if not key:
        raise RewardError(
            "reward.judge.api_key must name a variable that is set where the run is submitted",
            seen=f"{config.api_key} is not set",
            action=f"export {config.api_key}=..., then resume the run",
        )
    scorer = JudgeScorer(config, key, Replies(run, config), urls, check)
    try:
        scorer.wait_for_api()
        yield scorer
    finally:
        scorer.close()
        append_event(run, "judge/closed", **scorer.totals())


class JudgeScorer:
    """A `Scorer`; its requests run in an event loop of its own thread."""

    def __init__(
        self,
        config: JudgeConfig,
        key: str,
        replies: Replies,
        urls: Sequence[str] = (),
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._openai = import_heavy("openai", "reward.judge needs the openai client, which vLLM brings")
        self._config, self._key, self._replies = config, key, replies
        self._counts: Counter[str] = Counter()
        self._paid = 0.0
        self._last_status: int | None = None
        self._free = asyncio.Semaphore(config.num_connections)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._check = check
        self._clients = [self._build_client(url, is_ours=bool(urls)) for url in urls or [config.url or ""]]
        self._in_flight = [0] * len(self._clients)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="judge", daemon=True)
        self._thread.start()

    def _build_client(self, url: str, *, is_ours: bool) -> Any:
        client = self._openai.AsyncOpenAI(
            base_url=url,
            api_key=self._key,
            max_retries=_RETRIES,
            timeout=self._config.timeout_s,
            # A proxy for the outside world must not be between two nodes of the run.
            http_client=self._openai.DefaultAsyncHttpxClient(
                event_hooks={"response": [self._note]}, trust_env=not is_ours
            ),
        )
        # The client imports this part at its first use, which the deadline of a completion should not pay.
        assert client.chat.completions
        return client

    def wait_for_api(self) -> None:
        """Wait for any answer of the API, so that a wrong address costs no rollouts.

        Raises:
            RewardError: there is none within deadline_s.
        """
        asyncio.run_coroutine_threadsafe(self._reach(), self._loop).result()

    async def _reach(self) -> None:
        try:
            async with asyncio.timeout(self._config.deadline_s):
                for one in self._clients:
                    client = one.with_options(max_retries=0, timeout=self._config.timeout_s)
                    while not await self._answers(client):
                        await asyncio.sleep(_PAUSE_S)
        except TimeoutError:
            raise RewardError(
                "the API of reward.judge.url must answer before the run starts",
                seen=f"{self._config.address}: no answer within reward.judge.deadline_s = {self._config.deadline_s:g}",
                action="start the API, or correct reward.judge.url; the nodes of the run must reach it",
            ) from None

    async def _answers(self, client: Any) -> bool:
        try:
            await client.models.list()
        except self._openai.APIConnectionError:
            return False
        except (self._openai.OpenAIError, ValueError):
            pass  # any answer will do, since not all APIs list their models
        return True

    def close(self) -> None:
        for client in self._clients:
            asyncio.run_coroutine_threadsafe(client.close(), self._loop).result(_STOP_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)

    def totals(self) -> dict[str, Any]:
        """Return the number of new replies, of verdicts from the cache, and the cost of the new ones."""
        return {"replies": self._counts["new"], "cached": self._counts["cached"], "cost": round(self._paid, 6)}

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        """Return one result per item, in order.

        Raises:
            RewardError: the API refuses the key or does not know the model.
        """
        return asyncio.run_coroutine_threadsafe(self._score_all(items), self._loop).result()

    async def _score_all(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        tasks = [asyncio.ensure_future(self._score(item)) for item in items]
        scored = asyncio.gather(*tasks)
        try:
            while not (await asyncio.wait([scored], timeout=_CHECK_S))[0]:
                await asyncio.to_thread(self._check)
            return list(scored.result())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(scored, *tasks, return_exceptions=True)

    async def _score(self, item: RewardItem) -> RewardResult:
        prompt = render_prompt(self._config.prompt, item)
        async with self._free:
            try:
                async with asyncio.timeout(self._config.longest_s):
                    # In turn: the first failure saves the other requests.
                    votes = [await self._vote(prompt, number) for number in range(self._config.votes)]
            except TimeoutError:
                last = f"no answer from {self._config.address}"
                last = last if self._last_status is None else f"the API's last error was {self._last_status}"
                words = f"no verdict within reward.judge.deadline_s = {self._config.longest_s:g}; {last}"
                return Failure("hang", words).result(item)
            except NoVerdict as error:
                return Failure("bad score", shorten(str(error), _SHOWN_CHARS)).result(item)
            except (self._openai.OpenAIError, ValueError) as error:  # ValueError: the body is not JSON
                return self._refused(error).result(item)
        rewards = [reward for reward, _, _ in votes]
        value = sum(rewards) / len(rewards)
        parts = votes[0][1] | {"judge": value, "judge_cost": sum(cost for _, _, cost in votes)}
        parts |= {"judge_agreement": agreement(rewards)} if len(votes) > 1 else {}
        return RewardResult(item=item, value=value, parts=parts)

    async def _vote(self, prompt: str, number: int) -> tuple[float, dict[str, float], float]:
        """Return the reward of one vote, other numbers of its reply, and the cost of all its replies.

        Raises:
            NoVerdict: no reply has one.
        """
        cost, fault = 0.0, ""
        for at in range(self._config.tries):
            verdict = await self._ask(prompt, number, at)
            cost, fault = cost + verdict.cost, verdict.fault
            if verdict.reward is not None:
                return verdict.reward, verdict.others, cost
        raise NoVerdict(fault)

    async def _ask(self, prompt: str, number: int, at: int) -> Verdict:
        config = self._config
        key = content_key(config.url, config.model_name, config.fields, prompt, number, at)
        # Equal completions of a batch have one reply, as they will have in a resumed run.
        async with self._locks.setdefault(key, asyncio.Lock()):
            if known := self._replies.get(key):
                self._counts["cached"] += 1
                return known
            answer = await self._request(prompt)
            verdict = self._replies.put(key, read_reply(answer))
            self._counts["new"] += 1
            self._paid += verdict.cost
            return verdict

    async def _request(self, prompt: str) -> Any:
        """Return the answer of the server with the fewest requests in flight."""
        place = min(range(len(self._clients)), key=self._in_flight.__getitem__)
        self._in_flight[place] += 1
        try:
            return await self._clients[place].chat.completions.create(
                model=self._config.model_name,
                messages=[{"role": "user", "content": prompt}],
                extra_body=self._config.fields,
            )
        finally:
            self._in_flight[place] -= 1

    async def _note(self, response: Any) -> None:
        if response.status_code >= 400:
            self._last_status = response.status_code

    def _refused(self, error: Exception) -> Failure:
        """Return the failure of one completion; raise RewardError for an error that all requests have."""
        words = shorten(f"{type(error).__name__}: {error}".replace(self._key, "<key>"), _SHOWN_CHARS)
        if getattr(error, "status_code", None) in _REFUSALS:
            raise RewardError(
                "the API of reward.judge.url must accept the key and know the model",
                seen=f"{self._config.model_name} at {self._config.address}: {words}",
                action="correct reward.judge.url, model or the value of the variable that reward.judge.api_key names",
            ) from None
        return Failure("service", words)


def read_reply(answer: Any) -> dict[str, Any]:
    """Return the parts of an answer that the verdict depends on.

    Raises:
        ValueError: it is not an answer of the chat completions API.
    """
    choices = getattr(answer, "choices", None)
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = getattr(choice, "message", None)
    text = getattr(message, "content", None)
    if message is None or not isinstance(text, str | None):
        raise ValueError(f"the API must answer with choices[0].message.content; got {shorten(repr(answer), 200)}")
    usage = getattr(answer, "usage", None)
    tokens = [getattr(usage, f"{name}_tokens", 0) for name in ("prompt", "completion")]
    counts = [count if isinstance(count, int) and count >= 0 else 0 for count in tokens]
    return {"text": text, "end": getattr(choice, "finish_reason", None), "input": counts[0], "output": counts[1]}
