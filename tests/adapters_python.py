"""Separate environments with packages that the tests' environment cannot have, made once in the user's cache."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

GIVEN = "SLURM_RL_ADAPTERS_PYTHON"
PACKAGES = ("reasoning-gym==0.1.25", "skyrl-gym==0.4.0", "verifiers==0.3.0")
"""Versions with compatible pins."""


@cache
def adapters_python() -> str:
    """Return the Python with packages that our environment adapters support, or that of SLURM_RL_ADAPTERS_PYTHON."""
    return os.environ.get(GIVEN) or make_environment("adapters", PACKAGES)


def make_environment(name: str, *steps: Sequence[str]) -> str:
    """Return the Python of `$XDG_CACHE_HOME/slurm_rl/<name>` (default: `~/.cache`) with the packages of all steps.

    Skips the test, with pip's error, if an installation fails.
    """
    key = hashlib.sha256(repr((steps, sys.version, sys.base_prefix)).encode()).hexdigest()[:12]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "slurm_rl", name, key)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test process may be installing
        if not (folder / "complete").exists():
            # In its final place, since scripts contain the path.
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            for packages in steps:
                # Without --no-compile half of the time goes into compiling unused modules.
                pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile", "--retries=1"]
                done = subprocess.run([*pip, *packages], capture_output=True, text=True)
                if done.returncode != 0:
                    shutil.rmtree(folder)
                    pytest.skip(f"the package index did not give {' '.join(packages)}: {done.stderr[-300:]}")
            (folder / "complete").touch()
    return str(folder / "bin" / "python")
