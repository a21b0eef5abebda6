"""The manifest of a prepared folder: where everything came from, and what must be there.

It is written last, so a folder with a manifest is a whole one; one that still has every file it names makes
a second `prepare` a no-op, without the network.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from slurm_rl.run_dir.run_dir import write_json


def sha256_of(path: Path) -> str:
    """SHA-256 of the content, in hex: what Git LFS names a large file by."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_oid_of(path: Path) -> str:
    """SHA-1 of `blob <size>\\0` and the content, in hex: what git names a small file by."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: digest).hexdigest()


FORMAT = 1
NAME = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file of the hub."""

    repo: str
    file: str
    size: int
    sha256: str | None


@dataclass(frozen=True, kw_only=True)
class Output:
    """One file of the folder."""

    file: str
    size: int
    sha256: str | None = None
    """None for images and weights, which are too many or too large to hash each time."""
    rows: int | None = None
    """Rows of a data file."""


@dataclass(frozen=True)
class Manifest:
    """What `prepare` made, and from what."""

    name: str
    folder: str
    """Absolute path at that time; image paths in the rows begin with it."""
    revision: str
    commit: str
    sources: list[Source]
    outputs: list[Output]
    left_out: list[str] = field(default_factory=list)
    """Rows that are not in the outputs, by number and reason: bad ones when they were to be left out, and those
    whose answer the verifier cannot read."""
    format: int = FORMAT

    def save(self) -> None:
        write_json(Path(self.folder) / NAME, asdict(self))

    def find_change(self, folder: Path, revision: str) -> str:
        """What of the folder is not as written here, in words; "" when it is whole."""
        if self.folder != str(folder):
            return f"it was made in {self.folder}"
        if revision not in (self.revision, self.commit):
            return f"it is revision {self.revision} ({self.commit[:12]})"
        for output in self.outputs:
            path = folder / output.file
            size = path.stat().st_size if path.is_file() else None
            if size != output.size:
                return f"{output.file} has {'no file' if size is None else size} in place of {output.size} bytes"
            if output.sha256 and sha256_of(path) != output.sha256:
                return f"{output.file} was changed"
        return ""


def load_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder; None when there is none that this version can read."""
    try:
        tree = json.loads((folder / NAME).read_text(encoding="utf-8"))
        tree["sources"] = [Source(**source) for source in tree["sources"]]
        tree["outputs"] = [Output(**output) for output in tree["outputs"]]
        manifest = Manifest(**tree)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return manifest if manifest.format == FORMAT else None
