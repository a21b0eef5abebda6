"""The reward service's HTTP side: who may ask, what is too large, and an answer to everything.

    POST /get_reward   the protocol in protocol.py; with a token, as `Authorization: Bearer <token>` or as the
                       password of http://any:<token>@host:port/get_reward, which OpenRLHF's clients can send
    GET  /health       200 and counts while the workers run; open to all, it tells nothing of the data

Bad requests get 4xx with the rule, the value seen and the next action in words; the service stays up.

Connections to the reward service, which anybody who reaches the port can open without a token. All are bounded.

Connections per address (slurm_rl.run_dir.strangers); the time and the length of a request's head; the time of its body,
whose length is bounded, too; and the lines that they bring into the log.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response

# The other of uvicorn's two, on httptools, takes a head of any length.
from uvicorn.protocols.http.h11_impl import H11Protocol

from slurm_rl.errors import RewardError
from slurm_rl.rewards.pool import RewardPool
from slurm_rl.rewards.protocol import RequestError, build_answer, parse_request
from slurm_rl.rewards.queries import build_items
from slurm_rl.run_dir.strangers import Crowd, SeldomLines, at_most

_MAX_WAITING = 200_000
"""Items in the line beyond which requests are sent away (503), before memory runs out."""
_DRAIN = 8
"""A body too large is read and thrown away up to this many times the limit, so that its sender reads the answer."""
HEAD_S = 10.0
"""For the whole head of a request, from its first byte or from the beginning of the connection."""
BODY_S = 120.0
"""For the rest of it: with the largest that reward.service.max_body_mb allows by default, half a megabyte a second."""
_MOST = 4096
_SHARE = 2


@dataclass
class ServiceState:
    """What the routes share."""

    pool: RewardPool
    token: str | None
    """None: everybody may ask."""
    max_body_bytes: int
    failure_reward: float = 0.0
    answers: Mapping[str, str] | None = None
    num_scored: int = 0
    num_failed: int = 0


def build_app(state: ServiceState) -> FastAPI:
    """The application; its workers are the pool's."""
    app = FastAPI(openapi_url=None)

    async def health(_: Request) -> Response:
        counts = {"scored": state.num_scored, "failed": state.num_failed, "waiting": state.pool.num_waiting}
        if state.pool.ended.done():
            return _reply(503, {"status": "ended", **counts})
        return _reply(200, {"status": "ok", **counts})

    async def get_reward(request: Request) -> Response:
        try:
            _check_token(request.headers.get("authorization"), state.token)
            return _reply(200, await _score(state, await read_body(request, state.max_body_bytes)))
        except RequestError as error:
            return _refuse(error.status, error)
        except RewardError as error:
            return _refuse(503, error)

    # Plain routes: FastAPI's own resolve dependencies anew for every request, and there are none.
    app.router.add_route("/health", health, methods=["GET"])
    app.router.add_route("/get_reward", get_reward, methods=["POST"])
    return app


async def _score(state: ServiceState, body: bytes) -> dict[str, Any]:
    asked = parse_request(body)
    items = build_items(asked, state.answers)
    if state.pool.num_waiting > _MAX_WAITING:
        raise RewardError(
            f"at most {_MAX_WAITING:,} items may wait for the workers",
            seen=f"{state.pool.num_waiting:,}",
            action="ask again later, or start the service with more workers",
        )
    results = await asyncio.wrap_future(state.pool.submit(items))
    state.num_scored += len(results)
    state.num_failed += sum(result.failure is not None for result in results)
    return build_answer(results, explain=asked.explain, failure_reward=state.failure_reward)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body of a request.

    Raises:
        RequestError: it is too long; it was read and thrown away, so that its sender reads the answer.
    """
    body, num_bytes = bytearray(), 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes <= max_bytes:
            body += chunk
        elif num_bytes > _DRAIN * max_bytes:
            break
    if num_bytes > max_bytes:
        raise RequestError(
            f"a request must be at most {max_bytes:,} bytes",
            status=413,
            seen=f"{num_bytes:,} or more",
            action="send less in one request, or start a reward service with a higher reward.service.max_body_mb",
        )
    return bytes(body)


def _check_token(header: str | None, token: str | None) -> None:
    if token is None:
        return
    kind, _, value = (header or "").partition(" ")
    if kind.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).decode("utf-8", "replace").partition(":")[2]
        except (binascii.Error, ValueError):
            value = ""
    elif kind.lower() != "bearer":
        value = ""
    if not secrets.compare_digest(value.strip().encode(), token.encode()):
        raise RequestError(
            "the request must carry the service's token",
            status=401,
            seen="another token" if value else "none",
            action="send Authorization: Bearer <token>, or ask http://any:<token>@host:port/get_reward",
        )


def _refuse(status: int, error: Exception) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return _reply(status, {"error": str(error)}, headers)


def _reply(status: int, tree: Any, headers: Mapping[str, str] | None = None) -> Response:
    # ASCII, since a completion may hold half a surrogate pair, which is no UTF-8.
    return Response(json.dumps(tree, allow_nan=False), status, headers, "application/json")


def limit_log_lines() -> None:
    """To the first few, then one a minute: there is one for every request that is none."""
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(SeldomLines())


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP protocol, which ends a connection whose head or body is late, and a quiet one of too many."""

    quiet: Crowd[Any] = Crowd()  # of all connections of this service, those without a request in work
    timer: asyncio.TimerHandle | None = None
    seen: Any = None  # the last request that came into work

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._be_quiet()
        self._set_timer(HEAD_S)
        num_busy = len(self.connections) - len(self.quiet)
        # At most half of what this process may open.
        for one in self.quiet.choose(at_most(_MOST, share=_SHARE) - num_busy):
            one.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()
        if self in self.quiet and self.timer is None:
            self._set_timer(HEAD_S)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # It may have begun with the next request, which had come before.
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self.quiet.remove(self)
        self._stop_timer()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Between two requests there is no timer: uvicorn's own deadline for that is a longer one."""
        is_busy = self.cycle is not None and not self.cycle.response_complete
        if is_busy and self.cycle is not self.seen:
            self.seen = self.cycle
            self.quiet.remove(self)
            self._set_timer(BODY_S)
        if is_busy and not self.cycle.more_body:
            self._stop_timer()
        if not is_busy and self.seen is not None and self not in self.quiet:
            self._stop_timer()
            self._be_quiet()
            if self.conn.trailing_data[0]:  # the next head has begun
                self._set_timer(HEAD_S)

    def _be_quiet(self) -> None:
        if not self.transport.is_closing():
            self.quiet.add(self, self.client[0] if self.client else "")

    def _set_timer(self, seconds: float) -> None:
        self._stop_timer()
        self.timer = asyncio.get_running_loop().call_later(seconds, self.transport.abort)

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
