"""One episode of a program: requests in, replies of the policy out, each turn recorded once."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.data.groups import Trajectory
from slurm_rl.data.lines import shorten
from slurm_rl.data.prompts import Message
from slurm_rl.data.tool_syntax import ToolSyntax
from slurm_rl.errors import ConfigError, DataError
from slurm_rl.rewards.protocol import RequestError
from slurm_rl.rewards.results import Failure
from slurm_rl.rollout.endpoint.conversation import Conversation, Place, Reading, Said, text_of
from slurm_rl.rollout.endpoint.requests import ReplyRequest
from slurm_rl.rollout.endpoint.tools import answer_message

_RETRIES = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Bounds:
    """Limits of an episode; beyond them it is truncated and scored."""

    max_turns: int
    """Replies in one episode."""
    max_tokens: int
    """Largest dialogue with its reply, in tokens."""


@dataclass(frozen=True, eq=False)
class Ask:
    """A request for a reply to the engines."""

    episode: str
    place: Place
    seed: int
    max_tokens: int
    stop: tuple[str, ...]
    is_wanted: Callable[[], bool]
    """False when its episode is over; then `done` may stay as it is."""
    answer: Callable[[Trajectory], Message | None]
    """Message for the program; None: the text."""
    tools: ToolSyntax | None = None
    """How calls are read off the reply; None: not at all."""
    done: Future[Trajectory] = field(default_factory=Future)

    @property
    def context(self) -> list[int]:
        """Prompt tokens of the reply."""
        return self.place.context


@dataclass(frozen=True)
class Call:
    """Identity of a request from its headers and body."""

    digest: str
    """Hash of the body."""
    key: str | None
    """Idempotency-Key."""
    num_retries: int
    """How often its sender has sent it before; OpenAI's packages count that."""

    @classmethod
    def of(cls, headers: Mapping[str, str], body: bytes) -> Call:
        retries = headers.get("x-stainless-retry-count", "")
        digest = hashlib.sha256(body).hexdigest()
        return cls(digest, headers.get("idempotency-key"), int(retries) if _RETRIES.fullmatch(retries) else 0)


@dataclass(eq=False)
class Answer:
    """Answer of a request, and whether the program has received it."""

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
    """A request beyond the limits of an episode; `code` is OpenAI's error code."""

    def __init__(self, rule: str, *, code: str, **words: Any) -> None:
        super().__init__(rule, status=400, **words)
        self.code = code


class LiveEpisode:
    """Record of a running episode. Only the endpoint's loop uses it, except `ask`.

    Args:
        seed: seed of the episode; the seed of a reply is derived from it and the position in the dialogue.
        ask: submits a request to the engines and returns at once.
    """

    def __init__(
        self, name: str, seed: int, conversation: Conversation, bounds: Bounds, ask: Callable[[Ask], None]
    ) -> None:
        self.name, self.seed, self.bounds, self.ask = name, seed, bounds, ask
        self.conversation = conversation
        self.is_truncated = self.is_over = False
        self.failure: Failure | None = None
        """Failure of the endpoint; the episode then gets no reward."""
        self.num_replies = 0
        self.dialogues: dict[str, list[Message]] = {}
        """Messages up to and with each response, by its id."""
        self._answers: list[Answer] = []
        self._reading = asyncio.Lock()
        """One request is tokenized at a time, so that no episode takes all threads."""

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
        """Return the recorded answer of a repeated request; None for a new one."""
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
        # Among requests with the same body, prefer one without a received answer.
        return next((one for one in same if not one.heard), next(reversed(same), None))

    async def _sample(self, request: ReplyRequest) -> list[Said]:
        self._check_is_open()
        self._check_turns(request)
        num_characters = _count_characters(request)
        if num_characters > self.bounds.max_tokens * self.conversation.renderer.longest_token:
            raise self.beyond_context(f"{num_characters:,} characters")
        async with self._reading:
            reading, syntax = await asyncio.to_thread(self._read, request)
        length = len(reading.context)
        if length == 0:
            raise RequestError(
                "a request must contain at least one token",
                seen="0 tokens",
                action="send a message with content",
                status=400,
            )
        if length + request.max_tokens > self.bounds.max_tokens:
            raise self.beyond_context(f"{length} and a reply of up to {request.max_tokens}")
        self._check_is_open()
        self._check_turns(request)
        self.num_replies += request.num_replies
        places = [self.conversation.place(reading, request.variant) for _ in range(request.num_replies)]
        asked = [self._ask(place, request, syntax) for place in places]
        replies = await asyncio.gather(*(asyncio.wrap_future(one.done) for one in asked))
        self._check_is_open()
        return [
            self.conversation.add(one.place, reply, one.answer(reply))
            for one, reply in zip(asked, replies, strict=True)
        ]

    def _read(self, request: ReplyRequest) -> tuple[Reading, ToolSyntax | None]:
        """Return prompt tokens and call parser of a request, computed in a thread."""
        try:
            syntax = self.conversation.renderer.with_tools(request.tools).syntax
        except (ConfigError, DataError) as error:
            raise refuse_tools(error) from None
        try:
            reading = self.conversation.read(request.messages, request.tools)
        except DataError as error:
            raise RequestError(error.rule, seen=error.seen, action="correct the messages", status=400) from None
        return reading, syntax if request.reads_calls else None

    def _check_turns(self, request: ReplyRequest) -> None:
        if self.num_replies + request.num_replies > self.bounds.max_turns:
            raise self._beyond(f"{self.bounds.max_turns} replies (env.max_turns)", self.num_replies, "turn_limit")

    def _check_is_open(self) -> None:
        if self.is_over:
            raise RequestError(
                "an episode that has ended has no more replies", seen=self.name, action="end", status=410
            )
        if self.failure is not None:
            raise RequestError(
                "an episode that has failed has no more replies", seen=self.failure.detail, action="end", status=410
            )

    def _ask(self, place: Place, request: ReplyRequest, syntax: ToolSyntax | None) -> Ask:
        ask = Ask(
            self.name,
            place,
            derive_seed(self.seed, place.name),
            request.max_tokens,
            request.stop,
            lambda: not self.is_over,
            lambda reply: _answer(reply, request) if syntax is not None else None,
            syntax,
        )
        self.ask(ask)
        return ask

    def beyond_context(self, seen: str) -> BeyondLimit:
        """Return the refusal of a request that no context holds; the episode is truncated."""
        # Packages without OpenAI's error codes look for `context length`.
        bound = f"a context length of {self.bounds.max_tokens} tokens (data.max_prompt_tokens + rollout.max_tokens)"
        return self._beyond(bound, seen, "context_length_exceeded")

    def _beyond(self, bound: str, seen: object, code: str) -> BeyondLimit:
        self.is_truncated = True
        return BeyondLimit(f"an episode is over at {bound}", code=code, seen=str(seen), action="end here")


def _count_characters(request: ReplyRequest) -> int:
    """Return how much text a request has, without a look at the tokens."""
    calls = (call["function"] for message in request.messages for call in message.get("tool_calls", ()))
    rest = [*(tool["function"] for tool in request.tools), *calls]
    return sum(len(text_of(message)) for message in request.messages) + sum(len(str(one)) for one in rest)


def _answer(reply: Trajectory, request: ReplyRequest) -> Message:
    return answer_message(reply, request.messages, at_most_one=request.one_call)


def refuse_request(why: str) -> RequestError:
    """Return the refusal of a request that the engine did not take."""
    return RequestError(
        "the engine must take a request",
        seen=shorten(why, 600),
        action="correct the request; leave tools out, or name their parser (env.tool_parser), if it is about calls",
        status=400,
    )


def refuse_tools(why: object) -> RequestError:
    """Error for tools that the template or parser does not support."""
    return RequestError(
        "the model's chat template must list tools, and vLLM's parser must read the calls that it renders",
        seen=shorten(str(why), 600),
        action="leave tools out, choose a model trained to call them, or set its parser (env.tool_parser)",
        status=400,
    )
