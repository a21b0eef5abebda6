"""The manifest of a prepared folder: its sources and its files.

It is written last, so a folder with a manifest is complete. If every listed file is present, a second `prepare` does
nothing and needs no network.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from slurm_rl.config.hub_names import PREPARED
from slurm_rl.run_dir.run_dir import write_json


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of the content in hex, which is the name of a large file in Git LFS."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


NAME = PREPARED


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
    """None for images and weights: too many or too large to hash each time."""
    rows: int | None = None
    """Rows of a data file."""


@dataclass(frozen=True)
class Manifest:
    """Sources and outputs of `prepare`."""

    name: str
    folder: str
    """Absolute path; image paths in the rows begin with it."""
    revision: str
    commit: str
    sources: list[Source]
    outputs: list[Output]
    left_out: list[str] = field(default_factory=list)
    """Omitted rows by number and reason: bad rows, and rows whose answer the verifier cannot read."""

    def save(self) -> None:
        write_json(Path(self.folder) / NAME, asdict(self))

    def find_change(self, folder: Path, revision: str) -> str:
        """Describe the first difference between folder and manifest; "" if there is none."""
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
    """Return the manifest of a folder; None if there is none that this version can read."""
    try:
        tree = json.loads((folder / NAME).read_text(encoding="utf-8"))
        tree["sources"] = [Source(**source) for source in tree["sources"]]
        tree["outputs"] = [Output(**output) for output in tree["outputs"]]
        return Manifest(**tree)
    except (OSError, ValueError, TypeError, KeyError):
        return None
