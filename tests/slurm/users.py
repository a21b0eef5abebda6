"""Another user of the same machine: nobody, with a Python that he may read."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.slurm.submitting import ROOT

NOBODY = 65534


@dataclass(frozen=True)
class OtherUser:
    """How to run something as him."""

    prefix: list[str]
    python: str
    env: dict[str, str]

    def own(self, folder: Path) -> Path:
        """A folder of his, in one that he may pass through."""
        folder.parent.chmod(0o755)
        folder.mkdir()
        os.chown(folder, NOBODY, NOBODY)
        return folder


def find_other_user() -> OtherUser:
    """Skips where he may read no Python of this version or not its packages."""
    # A virtual environment's interpreter may be a link into root's home.
    python = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")
    packages = [path for path in sys.path if path.endswith("site-packages")]
    prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT), *packages]), "USER": "nobody"}
    check = [*prefix, str(python), "-c", "import ray, tests.slurm.light.runs"]
    if python is None or subprocess.run(check, env=env, cwd="/", capture_output=True).returncode:
        pytest.skip(f"no Python for another user: he may not read {ROOT} or its packages")
    return OtherUser(prefix, python, env)
