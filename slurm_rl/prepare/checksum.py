"""The two checksums the hub knows a file by."""

from __future__ import annotations

import hashlib
from pathlib import Path

_CHUNK = 1 << 20


def sha256_of(path: Path) -> str:
    """SHA-256 of the content, in hex: what Git LFS names a large file by."""
    return _digest(path, hashlib.sha256())


def git_oid_of(path: Path) -> str:
    """SHA-1 of `blob <size>\\0` and the content, in hex: what git names a small file by."""
    return _digest(path, hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False))


def _digest(path: Path, digest: hashlib._Hash) -> str:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
