"""HTTP server of the endpoint, in a thread of the trainer, on loopback.

    POST /v1/chat/completions, POST /v1/responses   with the key of an episode as bearer token
    GET  /v1/models

    with Endpoint(renderer, rule, bounds, ask) as endpoint:
        key = endpoint.open("3.0", seed)            # OPENAI_BASE_URL=endpoint.url OPENAI_API_KEY=key agent
        episode = endpoint.close("3.0")             # its recorded conversation

Requests without the key of a running episode are refused.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import threading
import traceback
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from slurm_rl.data.lines import shorten
from slurm_rl.errors import RewardError
from slurm_rl.rewards.protocol import RequestError
from slurm_rl.rewards.results import Failure
from slurm_rl.rewards.service import listen
from slurm_rl.rollout.endpoint.answers import chat_answer, chat_events, list_models
from slurm_rl.rollout.endpoint.conversation import Conversation, DialogueRenderer
from slurm_rl.rollout.endpoint.episode import Answer, Ask, Bounds, Call, LiveEpisode
from slurm_rl.rollout.endpoint.requests import ReplyRequest, SamplingRule, parse_body, parse_chat
from slurm_rl.rollout.endpoint.responses import parse_response, response_answer, response_events
from slurm_rl.rollout.endpoint.tools import read_calls

_START_S, _STOP_S = 60.0, 10.0
_MOST_BODY_BYTES = 32_000_000
_ENVELOPE_BYTES = 65_536
_CHARACTER_BYTES, _TOKEN_BYTES = 12, 256
"""Bytes of JSON per character (two escapes) and per message of one token."""
_HOST = "127.0.0.1"
_NO_RETRY = {"x-should-retry": "false"}
"""Disables the retries of OpenAI's packages."""


class Endpoint:
    """Serves while it is open; a context manager.

    Args:
        ask: hands a reply that is wanted to the engines; called in the endpoint's thread, returns at once.
    """

    def __init__(
        self, renderer: DialogueRenderer, rule: SamplingRule, bounds: Bounds, ask: Callable[[Ask], None]
    ) -> None:
        self.renderer, self.rule, self.bounds, self.ask = renderer, rule, bounds, ask
        self._keys: dict[str, str] = {}
        """Key of each active episode, by its name. They are in no file, so that keys end with the trainer."""
        self._episodes: dict[str, LiveEpisode] = {}
        """Active episodes by key."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="endpoint", daemon=True)
        self._up = threading.Event()
        self._server: Any = None
        self._listener = listen(_HOST, 0)

    def __enter__(self) -> Endpoint:
        self.ensure_up()
        return self

    def ensure_up(self) -> None:
        """Start it, where it is not there; it ends with the process at the latest.

        Raises:
            RewardError: it did not in time.
        """
        if not self._thread.is_alive():
            _ = self.renderer.longest_token  # of a large vocabulary, which the loop does not go through
            self._thread.start()
        if not self._up.wait(_START_S):
            raise RewardError(f"the endpoint for programs must start within {_START_S:g} s", seen="nothing")

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.should_exit = self._server.force_exit = True
        self._thread.join(_STOP_S)
        self._listener.close()

    @property
    def url(self) -> str:
        """Value of OPENAI_BASE_URL."""
        return f"http://{_HOST}:{self._listener.getsockname()[1]}/v1"

    def open(self, name: str, seed: int) -> str:
        """Begin an episode and return its key, for `Authorization: Bearer <key>`."""
        key = self._keys[name] = f"slurm-rl-{secrets.token_hex(32)}"
        self._episodes[key] = LiveEpisode(name, seed, Conversation(self.renderer), self.bounds, self.ask)
        return key

    def close(self, name: str) -> LiveEpisode:
        """End an episode: its key becomes invalid and its record final."""
        episode = self._episodes.pop(self._keys.pop(name))
        episode.is_over = True
        # Wait until the loop has finished its current work for the episode.
        passed = threading.Event()
        self._loop.call_soon_threadsafe(passed.set)
        passed.wait(_STOP_S)
        return episode

    @property
    def max_body_bytes(self) -> int:
        """Longest body that a context can hold."""
        of_token = _CHARACTER_BYTES * self.renderer.longest_token + _TOKEN_BYTES
        return min(_MOST_BODY_BYTES, _ENVELOPE_BYTES + self.bounds.max_tokens * of_token)

    # ---- the endpoint's thread -----------------------------------------------------------------

    def _serve(self) -> None:
        import uvicorn

        settings = uvicorn.Config(
            self._build_app(),
            log_level="error",
            access_log=False,
            lifespan="off",
            http="h11",
            ws="none",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(settings)
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(self._up.set)
        self._loop.run_until_complete(self._server.serve(sockets=[self._listener]))

    def _build_app(self) -> Any:
        from fastapi import FastAPI, Request, Response
        from fastapi.responses import StreamingResponse

        app = FastAPI(openapi_url=None)

        async def chat(request: Request) -> Response:
            episode, body = await self._receive(request)
            asked = await asyncio.to_thread(lambda: parse_chat(parse_body(body), self.rule))
            answer = await self._answer(episode, asked, Call.of(request.headers, body), request)
            tree = chat_answer(asked, answer.said, f"chatcmpl-{uuid.uuid4().hex}", self.renderer.tokenizer)
            if asked.stream:
                events = list(chat_events(tree, with_usage=asked.with_usage))
                return StreamingResponse(events, media_type="text/event-stream")
            return _reply(200, tree)

        async def responses(request: Request) -> Response:
            episode, body = await self._receive(request)
            known = episode.dialogues
            asked = await asyncio.to_thread(lambda: parse_response(parse_body(body), self.rule, known))
            [said] = (await self._answer(episode, asked, Call.of(request.headers, body), request)).said
            tree = response_answer(asked, said, uuid.uuid4().hex, self.rule)
            episode.dialogues[tree["id"]] = [*asked.messages, read_calls(said.message)]
            if asked.stream:
                return StreamingResponse(list(response_events(tree)), media_type="text/event-stream")
            return _reply(200, tree)

        async def models(request: Request) -> Response:
            self._find(request)
            return _reply(200, list_models())

        app.router.add_route("/v1/chat/completions", self._told(chat), methods=["POST"])
        app.router.add_route("/v1/responses", self._told(responses), methods=["POST"])
        app.router.add_route("/v1/models", self._told(models), methods=["GET"])
        return app

    def _told(self, handle: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        """The route with its errors in OpenAI's form."""

        async def route(request: Any) -> Any:
            try:
                return await handle(request)
            except RequestError as error:
                code = getattr(error, "code", None) or ("invalid_api_key" if error.status == 401 else None)
                return _refuse(error.status, str(error), code)
            except Exception as error:  # ours: no request is to bring that about
                return self._fail(request, error)

        return route

    def _fail(self, request: Any, error: Exception) -> Any:
        """End the episode with this cause, and keep the traceback in the trainer's log."""
        episode = self._find_active(request)
        cause = f"the run's endpoint failed: {shorten(f'{type(error).__name__}: {error}')}"
        print(f"{cause}, in episode {episode.name if episode else 'unknown'}", file=sys.stderr)
        traceback.print_exception(error)
        if episode is not None:
            episode.failure = episode.failure or Failure("exception", cause)
        return _refuse(500, cause, None)

    def _find_active(self, request: Any) -> LiveEpisode | None:
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        return self._episodes.get(key.strip()) if kind.lower() == "bearer" else None

    def _find(self, request: Any) -> LiveEpisode:
        episode = self._find_active(request)
        if episode is None:
            raise RequestError(
                "a request must carry the key of an active episode, as Authorization: Bearer <key>",
                seen="another key, or that of an ended episode" if "authorization" in request.headers else "none",
                action="send the OPENAI_API_KEY of the program's environment",
                status=401,
            )
        return episode

    async def _receive(self, request: Any) -> tuple[LiveEpisode, bytes]:
        """Return the episode of a request and its body."""
        from slurm_rl.rewards.app import read_body

        episode, most = self._find(request), self.max_body_bytes
        try:
            return episode, await read_body(request, most)
        except RequestError:
            raise episode.beyond_context(f"a body above {most:,} bytes") from None

    async def _answer(self, episode: LiveEpisode, asked: ReplyRequest, call: Call, request: Any) -> Answer:
        answer = await episode.reply(asked, call)
        if await request.is_disconnected():
            raise RequestError("a program must wait for its answer", seen="a connection that it closed", status=499)
        if not episode.is_over:  # otherwise the episode is over and its record final
            answer.hear()
        return answer


def _refuse(status: int, message: str, code: str | None) -> Any:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return _reply(status, {"error": {"message": message, "type": kind, "param": None, "code": code}}, _NO_RETRY)


def _reply(status: int, tree: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
    from fastapi import Response

    # ASCII, since a reply may hold half a surrogate pair, which is no UTF-8.
    return Response(json.dumps(tree), status, headers, "application/json")
