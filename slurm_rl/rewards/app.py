"""HTTP application of the reward service.

    POST /get_reward   protocol.py; the token is sent as `Authorization: Bearer <token>` or as the password of
                       http://any:<token>@host:port/get_reward, which OpenRLHF's clients can send
    GET  /health       200 and counters while the workers run; needs no token and contains no data

Errors have a 4xx status.
"""

import asyncio
import base64
import binascii
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response

from slurm_rl.errors import RewardError
from slurm_rl.rewards.pool import RewardPool
from slurm_rl.rewards.protocol import RequestError, build_answer, parse_request
from slurm_rl.rewards.queries import build_items

_MAX_WAITING = 200_000
"""Largest number of queued items; further requests get status 503."""
_DRAIN = 8
"""An oversized body is read and discarded up to this multiple of the limit, so that the client reads the answer."""


@dataclass
class ServiceState:
    pool: RewardPool
    token: str | None
    """None: no authentication."""
    max_body_bytes: int
    failure_reward: float = 0.0
    answers: Mapping[str, str] | None = None
    num_scored: int = 0
    num_failed: int = 0


def build_app(state: ServiceState) -> FastAPI:
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

    # Plain Starlette routes: FastAPI resolves dependencies per request, and there are none.
    app.router.add_route("/health", health, methods=["GET"])
    app.router.add_route("/get_reward", get_reward, methods=["POST"])
    return app


async def _score(state: ServiceState, body: bytes) -> dict[str, Any]:
    asked = parse_request(body)
    items = build_items(asked, state.answers)
    if state.pool.num_waiting > _MAX_WAITING:
        raise RewardError(
            f"at most {_MAX_WAITING:,} items may be queued for the workers",
            seen=f"{state.pool.num_waiting:,}",
            action="retry later, or start the service with more workers",
        )
    results = await asyncio.wrap_future(state.pool.submit(items))
    state.num_scored += len(results)
    state.num_failed += sum(result.failure is not None for result in results)
    return build_answer(results, explain=asked.explain, failure_reward=state.failure_reward)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request; raise RequestError if it is longer than `max_bytes`."""
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
    # ASCII: a completion may hold half a surrogate pair, which is not valid UTF-8.
    return Response(json.dumps(tree, allow_nan=False), status, headers, "application/json")
