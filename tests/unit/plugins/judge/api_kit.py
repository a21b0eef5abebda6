"""A stand-in for an OpenAI-compatible API: a real HTTP server with scripted replies and faults."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.http_kit import serve_posts


@dataclass
class Answer:
    """HTTP answer; `text` becomes the reply of a chat completion."""

    text: str | None = None
    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    hang_s: float = 0.0
    finish_reason: str = "stop"

    def encode(self) -> bytes:
        if self.body is not None:
            return self.body
        if self.status != 200:
            return json.dumps({"error": {"message": "scripted"}}).encode()
        message = {"role": "assistant", "content": self.text}
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        return json.dumps({"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()


@dataclass
class Api:
    url: str
    requests: list[dict[str, Any]]
    keys: list[str | None]


@contextmanager
def serve_api(answer: Callable[[str], Answer]) -> Iterator[Api]:
    """Serve `answer(prompt)` at /v1/chat/completions."""
    api, ended = Api("", [], []), threading.Event()

    def respond(path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        assert path == "/v1/chat/completions"
        api.requests.append(json.loads(body))
        api.keys.append(headers["Authorization"])
        reply = answer(api.requests[-1]["messages"][-1]["content"])
        ended.wait(reply.hang_s)
        return reply.status, {"Content-Type": "application/json", **reply.headers}, reply.encode()

    with serve_posts(respond) as url:
        api.url = f"{url}/v1"
        try:
            yield api
        finally:
            ended.set()
