"""A separate environment with packages that our environment adapters support."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

GIVEN = "SLURM_RL_ADAPTERS_PYTHON"
PACKAGES = ("reasoning-gym==0.1.25", "skyrl-gym==0.4.0", "verifiers==0.3.0")
"""Versions with compatible pins."""


@cache
def adapters_python() -> str:
    """Return its `python`: from SLURM_RL_ADAPTERS_PYTHON, else installed once from the package index and cached.

    The cache is `$XDG_CACHE_HOME/slurm_rl/adapters` (default: `~/.cache`). Skips the test, with pip's error, if the
    installation fails.
    """
    if given := os.environ.get(GIVEN):
        return given
    key = hashlib.sha256(repr((PACKAGES, sys.version, sys.base_prefix)).encode()).hexdigest()[:12]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "slurm_rl", "adapters", key)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test process may be installing
        if not (folder / "complete").exists() and (refusal := _make(folder)):
            pytest.skip(f"the package index did not give {' '.join(PACKAGES)}: {refusal}")
    return str(folder / "bin" / "python")


def _make(folder: Path) -> str:
    """Install in its final place, since scripts contain the path; return pip's error."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    # Without --no-compile half of the time goes into compiling unused modules.
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile", "--retries", "1"]
    done = subprocess.run([*install, *PACKAGES], capture_output=True, text=True)
    if done.returncode != 0:
        shutil.rmtree(folder)
        return done.stderr[-300:]
    (folder / "complete").touch()
    return ""
