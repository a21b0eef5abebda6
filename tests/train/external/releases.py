"""Other trainers and their tools as they were released: unpacked, and only their parsers run."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

RELEASES = {
    "dotted": "openrlhf==0.11.2",
    "flat": "openrlhf==0.8.5",
    "verl": "verl==0.9.1",
    "xpk": "xpk==1.16.0",
    "maxtext": "maxtext==0.2.5",
    "tunix": "google-tunix==0.1.7",
    "prime": "prime-pydantic-config==0.4.3",
}
_FOR_A_NEWER_PYTHON = ("xpk", "maxtext", "tunix")


def unpack(root: Path, name: str) -> Path:
    """Return the folder of a release below `root`; it is downloaded once, without its dependencies."""
    folder = root / name
    if folder.is_dir():
        return folder
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--python-version=3.12", "--only-binary=:all:"] if name in _FOR_A_NEWER_PYTHON else []
    wheels = root / f"{name}-wheel"
    done = subprocess.run([*command, "--dest", str(wheels), RELEASES[name]], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{RELEASES[name]} cannot be downloaded here: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for moved in folder.glob("*.data/*lib/*"):
        moved.rename(folder / moved.name)
    return folder
