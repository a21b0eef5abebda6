"""A local hub: the endpoints that huggingface_hub calls, with faults on demand.

Large files (`.parquet`, `.gz`, `.safetensors`) are served as the hub does: the URL in the repository redirects to
another one that needs no token.
"""

import hashlib
import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
_LARGE = (".parquet", ".gz", ".zip", ".safetensors")
_INFO = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/revision/([^/]+))?")
_TREE = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)/tree/[^/]+")
_RESOLVE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


class Hub(ThreadingHTTPServer):
    """Serve `repos`; record every request in `log` as (method, path, Range header, token)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        """`datasets/<org>/<name>` or `models/<org>/<name>` -> file -> content."""
        self.listed: dict[str, bytes] = {}
        """File -> content for the reported size and checksum; by default the real content."""
        self.cuts: dict[str, list[int]] = {}
        """File -> byte counts after which its next downloads break; later downloads are complete."""
        self.gated: set[str] = set()
        self.log: list[tuple[str, str, str, str]] = []
        self.downloads: Counter[str] = Counter()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def close(self) -> None:
        self.shutdown()
        self._thread.join(10)
        self.server_close()


def describe(name: str, content: bytes) -> dict[str, Any]:
    oid = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
    entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": oid}
    if name.endswith(_LARGE):
        sha256 = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"size": len(content), "sha256": sha256, "pointerSize": 130}
    return entry


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        auth = self.headers.get("authorization", "")
        self.server.log.append((self.command, path, self.headers.get("Range", ""), auth))
        if match := _INFO.fullmatch(path):
            self._send_info(f"{match[1]}/{match[2]}", match[2], match[3] or "main")
        elif match := _TREE.fullmatch(path):
            self._send_tree(f"{match[1]}/{match[2]}")
        elif path.startswith("/elsewhere/"):
            repo, name = path.removeprefix("/elsewhere/").split("//")
            self._send_file(name, self.server.repos[repo][name])
        elif match := _RESOLVE.fullmatch(path):
            self._resolve(match[1] or "models/", match[2], match[3], match[4])
        else:
            self._refuse(404, "EntryNotFound")

    do_HEAD = do_GET

    def _send_info(self, key: str, repo: str, revision: str) -> None:
        files = self.server.repos.get(key)
        if files is None:
            return self._refuse(401 if "private" in key else 404, "RepoNotFound")
        if revision not in ("main", COMMIT):
            return self._refuse(404, "RevisionNotFound")
        if key in self.server.gated:
            return self._refuse(403, "GatedRepo")
        siblings = [describe(name, self.server.listed.get(name, content)) for name, content in files.items()]
        body = json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()
        return self._send(200, body, {"Content-Type": "application/json"})

    def _send_tree(self, key: str) -> None:
        entries = []
        for name, content in self.server.repos.get(key, {}).items():
            listed = describe(name, content)
            lfs = {"lfs": {**listed["lfs"], "oid": listed["lfs"]["sha256"]}} if "lfs" in listed else {}
            entries.append({"type": "file", "path": name, "oid": listed["blobId"], "size": listed["size"], **lfs})
        self._send(200, json.dumps(entries).encode(), {"Content-Type": "application/json"})

    def _resolve(self, kind: str, repo: str, revision: str, name: str) -> None:
        key = f"{kind}{repo}"
        content = self.server.repos.get(key, {}).get(name)
        if content is None or revision not in ("main", COMMIT):
            return self._refuse(404, "EntryNotFound")
        listed = describe(name, self.server.listed.get(name, content))
        tag = listed["lfs"]["sha256"] if "lfs" in listed else listed["blobId"]
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{tag}"'}
        if "lfs" not in listed:
            return self._send_file(name, content, headers)
        # Another host name than the hub's, like its storage: the token must not be sent there.
        location = f"http://localhost:{self.server.server_port}/elsewhere/{key}//{name}"
        headers |= {"X-Linked-Size": str(listed["size"]), "X-Linked-Etag": f'"{tag}"', "Location": location}
        return self._send(302, b"", headers)

    def _send_file(self, name: str, content: bytes, headers: dict[str, str] | None = None) -> None:
        start = 0
        if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            start = int(match[1])
        sent = {**(headers or {}), "Accept-Ranges": "bytes"}
        if start:
            sent["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cuts = self.server.cuts.get(name, [])
        cut = cuts.pop(0) if cuts and self.command == "GET" else None
        if self.command == "GET":
            self.server.downloads[name] += 1
        self._send(206 if start else 200, content[start:], sent, cut)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True
            self.connection.shutdown(2)
