"""A file system that stops responding: a FUSE mount with a stopped server process."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class HangingDisk:
    """`path` mirrors `source`, which always responds."""

    def __init__(self, source: Path, path: Path, *options: str) -> None:
        self.source, self.path = source, path
        # In the foreground, so that this process serves; kernel caches would hide the hang.
        words = ["-f", "-o", ",".join(["attr_timeout=0", "entry_timeout=0", "negative_timeout=0", *options])]
        self._server = subprocess.Popen(["bindfs", *words, str(source), str(path)], start_new_session=True)
        deadline = time.monotonic() + 30
        while not os.path.ismount(path):
            assert self._server.poll() is None and time.monotonic() < deadline, "bindfs does not mount"
            time.sleep(0.02)

    def hang(self) -> None:
        self._server.send_signal(signal.SIGSTOP)

    def answer(self) -> None:
        self._server.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Unmount; waiting processes get an error."""
        self.answer()
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)
        self._server.kill()
        self._server.wait()


@contextmanager
def hanging_disk(folder: Path, *options: str) -> Iterator[HangingDisk]:
    """Needs root, /dev/fuse and Debian's bindfs, which is installed on demand."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("a file system that hangs needs root and /dev/fuse")
    if shutil.which("bindfs") is None:
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "bindfs"], check=True)
    source, path = folder / "source", folder / "disk"
    source.mkdir()
    path.mkdir()
    disk = HangingDisk(source, path, *options)
    try:
        yield disk
    finally:
        disk.close()
