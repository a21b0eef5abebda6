"""Another user attacks the demo while it runs: its metrics are identical and its data stay private.

The attacker stops when its `stop` file exists, and appends each success to its `loot` file, which must stay empty.
"""

import encodings.idna  # noqa: F401 - the attacker cannot read our Python's modules any more
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from tests.other_user import as_stranger
from tests.train.test_run import find_temp_dirs
from tests.whole_run import exact_rows, start_run

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


pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
# Targets that are not files, or belong to the system.
_NOT_OURS = re.compile(r"^(?!/)|^/(dev/(?!shm/)|proc/|sys/|usr/|lib|bin/|etc/)| \(deleted\)$|^/memfd:")


def find_run_processes(process: subprocess.Popen[str], mark: Path) -> list[psutil.Process]:
    """Return all processes of the run, including Ray's orphans, which its environment variables identify."""
    found = {one.pid: one for one in psutil.Process(process.pid).children(recursive=True)}
    for one in psutil.process_iter():
        try:
            if str(mark).encode() in Path(f"/proc/{one.pid}/environ").read_bytes():
                found[one.pid] = one
        except OSError:
            continue
    return list(found.values())


def listening_ports(processes: list[psutil.Process]) -> list[int]:
    found = set()
    for one in processes:
        try:
            found |= {c.laddr.port for c in one.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        except psutil.Error:
            continue
    return sorted(found)


def find_exposed(processes: list[psutil.Process], python: Path) -> set[str]:
    """Return open writable files and shared memory, outside the installation, that any user can access."""
    paths = set()
    for one in processes:
        try:
            paths |= {file.path for file in one.open_files() if file.mode != "r"}
            paths |= {
                mapped.path for mapped in one.memory_maps() if mapped.path.startswith(("/dev/shm", "/tmp", "/var"))
            }
        except (psutil.Error, OSError):
            continue
    return {
        path for path in paths if not _NOT_OURS.search(path) and not path.startswith(str(python)) and _reaches(path)
    }


def _reaches(path: str) -> bool:
    try:
        if not Path(path).stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
            return False
        return all(parent.stat().st_mode & stat.S_IXOTH for parent in Path(path).parents)
    except OSError:
        return False


@pytest.fixture
def place() -> Iterator[Path]:
    """Make a folder that the other user can traverse up to the run; pytest restricts its own folders."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    folder = Path(tempfile.mkdtemp(prefix="slurm_rl-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_demo_with_hostile_neighbour_has_identical_metrics(whole_run: Path, place: Path) -> None:
    run_dir, neighbour = place / "run", Neighbour(place / "neighbour")
    before = os.umask(0o077)
    try:
        process = start_run(run_dir, "+reward=service", "reward.service.num_replicas=2")
    finally:
        os.umask(before)
    open_files: set[str] = set()
    num_ports = 0
    with neighbour.at_work():
        while process.poll() is None:
            found = find_run_processes(process, run_dir)
            ports = listening_ports(found)
            num_ports = max(num_ports, len(ports))
            folders = [run_dir]
            if (run_dir / "plan.json").exists():
                folders += find_temp_dirs(run_dir)
            neighbour.point_at(pids=[one.pid for one in found], ports=ports, folders=folders)
            open_files |= find_exposed(found, Path(sys.prefix))
            time.sleep(0.5)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert exact_rows(run_dir) == exact_rows(whole_run)
    assert neighbour.loot == [] and open_files == set()
    # The attacker reached Ray's ports and those of two services.
    assert num_ports > 8
    events = read_rows(RunDir(run_dir).events)
    assert [row for row in events if row["kind"] == "reward/service_died"] == []
    size = sum(path.stat().st_size for path in (run_dir / "attempts").rglob("*.log"))
    assert size < 5_000_000 and len(events) < 200
