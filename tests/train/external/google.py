"""MaxText and xpk as they were released: read, and only their parsers run."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

RELEASES = {"xpk": "xpk==1.16.0", "maxtext": "maxtext==0.2.5", "tunix": "google-tunix==0.1.7"}


def unpack(root: Path, name: str) -> Path:
    """The release's folder below `root`; downloaded without its dependencies, which are many, once."""
    folder = root / name
    if folder.is_dir():
        return folder
    # MaxText is for a newer Python than some of ours; nothing of it is installed.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--python-version=3.12", "--only-binary=:all:", "--dest", str(root / f"{name}-wheel"), RELEASES[name]]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{RELEASES[name]} cannot be downloaded here: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = (root / f"{name}-wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder
