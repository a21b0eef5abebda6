"""The programs that we stand beside, as they were released."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

RELEASES = {"dotted": "openrlhf==0.11.2", "flat": "openrlhf==0.8.5", "verl": "verl==0.9.1"}


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with one unpacked release a sub-folder; downloaded without their dependencies, once."""
    root = tmp_path_factory.mktemp("releases")
    for name, pin in RELEASES.items():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
        done = subprocess.run([*command, "--dest", str(root / name), pin], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"{pin} cannot be downloaded here: {done.stderr.strip().splitlines()[-1]}")
        (wheel,) = (root / name).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(root / name)
        for moved in (root / name).glob("*.data/*lib/*"):
            moved.rename(root / name / moved.name)
    return root
