"""A file system that fails on demand below one folder of this process: faults.c, preloaded.

The calls of every library go through it, including torch and safetensors, which no patch in Python would reach.
"""

import ctypes
import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")
HANG = -1

# The calls that each refuses; a full file system still renames and removes, a read-only one still syncs.
KINDS = {errno.ENOSPC: "cws", errno.EDQUOT: "cws", errno.EROFS: "cwnr", errno.EIO: "cwsnro", errno.ESTALE: "cwsnro"}
KINDS[HANG] = "cwsnro"


def build(folder: Path) -> Path:
    """Compile the library for LD_PRELOAD."""
    library = folder / "faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


class Faults:
    """The switch of a preloaded library."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)

    @contextmanager
    def failing(self, folder: Path, code: int, after: int) -> Iterator[None]:
        """Fail every call below `folder` that the error can meet, except the first `after`; with HANG they wait."""
        self._library.faults_set(os.fsencode(folder), KINDS[code].encode(), code, after)
        try:
            yield
        finally:
            self._library.faults_clear()

    @property
    def hits(self) -> int:
        """Calls that failed or waited since `failing` began."""
        return int(self._library.faults_hit())
