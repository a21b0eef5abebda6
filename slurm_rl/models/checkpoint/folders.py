"""Folders that appear whole or not at all. Standard library only."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_rl.run_dir.io_errors import annotate_path, fsync_path


@contextmanager
def written_beside(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes or replaces `folder` when the block ends, and is removed if it raises.

    Raises:
        OSError: it cannot be written; names a path.
    """
    tag = secrets.token_hex(4)
    beside, replaced = (folder.parent / f".{folder.name}.{kind}-{tag}" for kind in ("tmp", "old"))
    with annotate_path(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir()
        try:
            yield beside
            _open_to_others(beside)
            fsync_tree(beside)
            if folder.exists():
                folder.rename(replaced)
            beside.rename(folder)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        fsync_path(folder.parent)
        shutil.rmtree(replaced, ignore_errors=True)


def _open_to_others(folder: Path) -> None:
    """Give files the mode of the user's umask: safetensors writes files that only the owner can read."""
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o666 & ~mask)


def fsync_tree(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file() or path.is_dir():
            fsync_path(path)
    fsync_path(folder)
