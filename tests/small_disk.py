"""A real file system of a few kilobytes, on which a disk can be full."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(tmp_path: Path, *, size_kb: int) -> Iterator[Path]:
    """A tmpfs of this size; needs root."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        # Lazily: a process that a test left to die may still hold a file.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
