"""A real file system of a few kilobytes, to fill it completely."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(tmp_path: Path, *, size_kb: int) -> Iterator[Path]:
    """Mount a tmpfs of this size; needs root."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        # Lazily: processes of a failed test may still hold files.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
