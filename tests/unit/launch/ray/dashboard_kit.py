"""A fake Ray dashboard: the paths of Ray's job API that we use, over real HTTP."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "token-of-the-cluster"
VERSION = {"ray_version": "2.60.0"}


class FakeCluster:
    """Requests received, and the answers to send."""

    def __init__(self) -> None:
        self.address = ""
        self.override: tuple[int, bytes, dict[str, str]] | None = None
        self.packages: dict[str, bytes] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.logs = ""
        self.requests: list[tuple[str, str]] = []

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        self.requests.append((method, path))
        words = path.strip("/").split("/")
        if path == "/api/version":
            return 200, json.dumps(VERSION).encode()
        if words[1] == "packages":
            if method == "PUT":
                self.packages[words[3]] = body
            return (200, b"") if words[3] in self.packages else (404, b"Package does not exist")
        if method == "POST" and path == "/api/jobs/":
            request = json.loads(body)
            self.jobs[request["submission_id"]] = {"status": "RUNNING", "request": request}
            return 200, json.dumps({"submission_id": request["submission_id"]}).encode()
        if words[2] not in self.jobs:
            return 404, b"Job does not exist"
        if words[-1] == "logs":
            return 200, json.dumps({"logs": self.logs}).encode()
        if words[-1] == "stop":
            self.jobs[words[2]]["status"] = "STOPPED"
            return 200, b'{"stopped": true}'
        return 200, json.dumps(self.jobs[words[2]]).encode()


@contextmanager
def serve(token: str | None = TOKEN) -> Iterator[FakeCluster]:
    cluster = FakeCluster()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            given = self.headers.get("Authorization")
            headers: dict[str, str] = {}
            if token is not None and given != f"Bearer {token}":
                code, answer = (403 if given else 401), b"Unauthorized"
            elif cluster.override is not None:
                code, answer, headers = cluster.override
            else:
                code, answer = cluster.answer(self.command, self.path, body)
            self.send_response(code)
            for name, value in {"Content-Length": str(len(answer)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_PUT = do_POST = handle_any

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    cluster.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield cluster
    finally:
        server.shutdown()
        server.server_close()
