"""An environment of their own for packages whose worlds our adapters play."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

GIVEN = "SLURM_RL_ADAPTERS_PYTHON"


@cache
def adapters_python(*packages: str) -> str:
    """Its `python`: of SLURM_RL_ADAPTERS_PYTHON, else made of the package index, once a session.

    Skips the test where the index does not give them, in its words.
    """
    if given := os.environ.get(GIVEN):
        return given
    folder = Path(mkdtemp(prefix="adapters-"))
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    made = folder / "bin" / "python"
    done = subprocess.run([made, "-m", "pip", "install", "-q", *packages], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"the package index did not give {' '.join(packages)}: {done.stderr[-300:]}")
    return str(made)
