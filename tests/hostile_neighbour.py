"""Another user of the machine who attacks a run's folders, files, processes, ports and shared memory.

The attacker stops when its `stop` file exists, and appends each success to its `loot` file, which must stay empty.
"""

import encodings.idna  # noqa: F401 - he cannot read our Python's modules any more
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.other_user import as_stranger

_PAUSE_S = 0.3
_CONNECTIONS = 20
_WORDS = (
    b"",
    b"POST /get_reward HTTP/1.1\r\nHost: x\r\nContent-Le",
    b'POST /get_reward HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n{"query":["1"]',
    b"GET /api/jobs/ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 40,
    b"slurm_rl/1\n" + b"n" * 40,
    b"\xff" * 400,
)


class Neighbour:
    """An attacker that the test supplies with paths and ports beyond its own knowledge."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        self._targets, self._loot, self._stop = folder / "targets", folder / "loot", folder / "stop"
        self._targets.write_text("{}")

    def point_at(self, *, pids: list[int], ports: list[int], folders: list[Path]) -> None:
        tree = {"pids": pids, "ports": ports, "folders": [str(path) for path in folders]}
        (self.folder / "next").write_text(json.dumps(tree))
        (self.folder / "next").rename(self._targets)

    @property
    def loot(self) -> list[dict[str, Any]]:
        text = self._loot.read_text() if self._loot.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Run the attacks in a process of the other user."""
        with ThreadPoolExecutor(1) as thread:
            work = thread.submit(as_stranger, self._work)
            try:
                yield
            finally:
                self._stop.touch()
            # A crashed attacker proves nothing.
            work.result()

    def _work(self) -> None:
        held: list[socket.socket] = []
        while not self._stop.exists():
            targets = json.loads(self._targets.read_text())
            for path in targets.get("folders", []):
                self._try_folder(Path(path))
            for pid in targets.get("pids", []):
                self._try_process(pid)
            for sock in held:
                sock.close()
            held = [sock for port in targets.get("ports", []) for sock in self._knock(port)]
            threading.Event().wait(_PAUSE_S)

    def _try_folder(self, folder: Path) -> None:
        self._try("make a file in", folder, lambda: (folder / "planted").touch())
        self._try("rename", folder, lambda: folder.rename(folder.with_name("taken")))
        self._try("remove", folder, folder.rmdir)
        for base, _, names in os.walk(folder):
            for path in (Path(base), *(Path(base, name) for name in names)):
                for way in (os.R_OK, os.W_OK):
                    if os.access(path, way):
                        self._note("write" if way == os.W_OK else "read", path)

    def _try_process(self, pid: int) -> None:
        proc = Path(f"/proc/{pid}")
        self._try("signal", pid, lambda: os.kill(pid, signal.SIGTERM))
        self._try("read the environment of", pid, (proc / "environ").read_bytes)
        self._try("read the memory of", pid, (proc / "mem").open)
        self._try("list the files of", pid, lambda: list((proc / "fd").iterdir()))

    def _knock(self, port: int) -> Iterator[socket.socket]:
        for number in range(_CONNECTIONS):
            sock = socket.socket()
            sock.settimeout(0.5)
            with suppress(OSError):
                sock.connect(("127.0.0.1", port))
                sock.send(_WORDS[number % len(_WORDS)])
                if number % 5 == 0 and b'"rewards"' in sock.recv(2000):
                    self._note("have scored", port)
            yield sock

    def _try(self, deed: str, what: object, act: Callable[[], object]) -> None:
        with suppress(OSError):
            act()
            self._note(deed, what)

    def _note(self, deed: str, what: object) -> None:
        with self._loot.open("a") as file:
            file.write(json.dumps({"deed": deed, "what": str(what)}) + "\n")
