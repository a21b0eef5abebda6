"""One episode as its program sees it: requests in, replies of the policy out, each turn recorded once."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from slurm_rl.data.prompts import Message
from slurm_rl.endpoint.conversation import Conversation, Place, Said, Sampled
from slurm_rl.endpoint.requests import ReplyRequest
from slurm_rl.errors import DataError
from slurm_rl.math.schedule import derive_seed
from slurm_rl.rewards.protocol import RequestError


@dataclass(frozen=True)
class Bounds:
    """How far a program may go; beyond, its episode is truncated, and scored."""

    max_turns: int
    """Replies in one episode."""
    max_tokens: int
    """Of one dialogue with its reply: what the model reads at once."""


@dataclass(frozen=True, eq=False)
class Ask:
    """A reply that is wanted of the engines."""

    episode: str
    context: list[int]
    seed: int
    max_tokens: int
    stop: tuple[str, ...]
    is_wanted: Callable[[], bool]
    """False when its episode is over; then `done` may stay as it is."""
    done: Future[Sampled] = field(default_factory=Future)


@dataclass(frozen=True)
class Call:
    """What the head of a request says of it."""

    digest: str
    """Of its body."""
    key: str | None
    """Idempotency-Key."""
    num_retries: int
    """How often its sender has sent it before; OpenAI's packages count that."""

    @classmethod
    def of(cls, headers: Mapping[str, str], body: bytes) -> Call:
        retries = headers.get("x-stainless-retry-count", "0")
        digest = hashlib.sha256(body).hexdigest()
        return cls(digest, headers.get("idempotency-key"), int(retries) if retries.isdigit() else 0)


@dataclass(eq=False)
class Answer:
    """What a request got, and whether its program has it."""

    call: Call
    task: asyncio.Task[list[Said]]
    heard: bool = False

    @property
    def said(self) -> list[Said]:
        return self.task.result()

    def hear(self) -> None:
        """It is on its way to the program."""
        self.heard = True
        for said in self.said:
            said.heard = True


class BeyondLimit(RequestError):
    """A request beyond what an episode may be; `code` is OpenAI's word for it."""

    def __init__(self, rule: str, *, code: str, **words: Any) -> None:
        super().__init__(rule, status=400, **words)
        self.code = code


class LiveEpisode:
    """What is recorded of an episode while its program runs. All but `ask` is touched by the endpoint's loop alone.

    Args:
        seed: of the episode; each reply gets one of its own from it and its place in the dialogue.
        ask: hands a reply that is wanted to the engines and returns at once.
    """

    def __init__(
        self, name: str, seed: int, conversation: Conversation, bounds: Bounds, ask: Callable[[Ask], None]
    ) -> None:
        self.name, self.seed, self.bounds, self.ask = name, seed, bounds, ask
        self.conversation = conversation
        self.is_truncated = self.is_over = False
        self.num_replies = 0
        self.dialogues: dict[str, list[Message]] = {}
        """Messages up to and with each response, by its id."""
        self._answers: list[Answer] = []

    async def reply(self, request: ReplyRequest, call: Call) -> Answer:
        """The replies that a request asks for: new ones, or those that it got when it was sent before.

        Raises:
            RequestError: it is beyond a limit, cannot be rendered, or has another's idempotency key.
        """
        answer = self._find_answer(call)
        if answer is None:
            answer = Answer(call, asyncio.create_task(self._sample(request)))
            self._answers.append(answer)
        try:
            await asyncio.shield(answer.task)
        except RequestError:
            self._answers = [one for one in self._answers if one is not answer]
            raise
        return answer

    def _find_answer(self, call: Call) -> Answer | None:
        """What this call got before; None for one that is new."""
        if call.key is not None:
            known = next((one for one in self._answers if one.call.key == call.key), None)
            if known is not None and known.call.digest != call.digest:
                raise RequestError(
                    "an Idempotency-Key must name one request of an episode",
                    seen="another body with the same key",
                    action="make a new key for each request",
                    status=422,
                )
            return known
        if call.num_retries == 0:
            return None
        same = [one for one in self._answers if one.call.digest == call.digest]
        # Of several with one body it is one that nobody heard.
        return next((one for one in same if not one.heard), next(reversed(same), None))

    async def _sample(self, request: ReplyRequest) -> list[Said]:
        self._check_is_open()
        if self.num_replies + request.num_replies > self.bounds.max_turns:
            raise self._beyond(f"{self.bounds.max_turns} replies (env.max_turns)", self.num_replies, "turn_limit")
        try:
            places = [self.conversation.place(request.messages) for _ in range(request.num_replies)]
        except DataError as error:
            raise RequestError(error.rule, seen=error.seen, action="correct the messages", status=400) from None
        length = len(places[0].context)
        if length + request.max_tokens > self.bounds.max_tokens:
            bound = f"{self.bounds.max_tokens} tokens (data.max_prompt_tokens + rollout.max_tokens)"
            seen = f"{length} and a reply of up to {request.max_tokens}"
            raise self._beyond(bound, seen, "context_length_exceeded")
        self.num_replies += request.num_replies
        asked = [self._ask(place, request) for place in places]
        replies = await asyncio.gather(*(asyncio.wrap_future(one.done) for one in asked))
        self._check_is_open()
        return [self.conversation.add(place, reply) for place, reply in zip(places, replies, strict=True)]

    def _check_is_open(self) -> None:
        if self.is_over:
            raise RequestError("an episode that is over has no replies", seen=self.name, action="end", status=410)

    def _ask(self, place: Place, request: ReplyRequest) -> Ask:
        ask = Ask(
            self.name,
            place.context,
            derive_seed(self.seed, place.name),
            request.max_tokens,
            request.stop,
            lambda: not self.is_over,
        )
        self.ask(ask)
        return ask

    def _beyond(self, bound: str, seen: object, code: str) -> BeyondLimit:
        self.is_truncated = True
        return BeyondLimit(f"an episode is over at {bound}", code=code, seen=str(seen), action="end here")
