"""An environment of their own for packages whose worlds our adapters play."""

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
"""Their pins fit together."""


@cache
def adapters_python() -> str:
    """Its `python`: of SLURM_RL_ADAPTERS_PYTHON, else made of the package index once, and kept.

    It is kept below `$XDG_CACHE_HOME` (`~/.cache`) in `slurm_rl/adapters`. Skips the test where the index does not give
    the packages, in pip's words.
    """
    if given := os.environ.get(GIVEN):
        return given
    key = hashlib.sha256(repr((PACKAGES, sys.version, sys.base_prefix)).encode()).hexdigest()[:12]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "slurm_rl", "adapters", key)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of the tests may be making it
        if not (folder / "complete").exists() and (refusal := _make(folder)):
            pytest.skip(f"the package index did not give {' '.join(PACKAGES)}: {refusal}")
    return str(folder / "bin" / "python")


def _make(folder: Path) -> str:
    """Make it in its place, which its scripts name; returns what pip says where that cannot be."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    # Without --no-compile half of the time goes into modules that nobody imports.
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile", "--retries", "1"]
    done = subprocess.run([*install, *PACKAGES], capture_output=True, text=True)
    if done.returncode != 0:
        shutil.rmtree(folder)
        return done.stderr[-300:]
    (folder / "complete").touch()
    return ""
