"""What a Ray cluster gets of a run: one zip with the package, the config and the plan, and nothing else.

    slurm_rl/...   run/config.yaml   run/plan.json

Its name is its content's hash, so that a resumed run sends nothing twice.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

from slurm_rl.errors import ConfigError
from slurm_rl.run_dir import RunDir

LIMIT_MB = 32
"""The package is about 1 MB; Ray keeps the zip in its head's memory."""
# The earliest time that a zip can hold: the same bytes for the same files.
_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Package:
    """A working directory, zipped."""

    name: str
    content: bytes

    @property
    def uri(self) -> str:
        return f"gcs://{self.name}"


def build_package(run: RunDir) -> Package:
    """Zip the run's snapshot of the code, its config and its plan.

    Raises:
        ConfigError: it is larger than LIMIT_MB.
    """
    files = {path.relative_to(run.code).as_posix(): path for path in list_files(run.code)}
    files |= {"run/config.yaml": run.config, "run/plan.json": run.plan}
    _check_size(files)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, files[name].read_bytes())
    content = buffer.getvalue()
    return Package(f"_ray_pkg_{hashlib.sha256(content).hexdigest()[:32]}.zip", content)


def list_files(folder: Path) -> list[Path]:
    """Files below `folder`, without what Python made of them."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in found if "__pycache__" not in path.relative_to(folder).parts]


def _check_size(files: dict[str, Path]) -> None:
    sizes = {name: path.stat().st_size for name, path in files.items()}
    total = sum(sizes.values())
    if total > LIMIT_MB * 1e6:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        raise ConfigError(
            f"the code sent to a Ray cluster must be at most {LIMIT_MB} MB",
            seen=f"{total / 1e6:.0f} MB, most of it " + ", ".join(f"{n} ({sizes[n] / 1e6:.0f} MB)" for n in largest),
            action="take such files out of the package's folder; data and models go on a path that the cluster sees",
        )
