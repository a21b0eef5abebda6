"""Another user of the same machine: `nobody`, with a readable Python."""

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
    """Command prefix, Python and environment of the other user."""

    prefix: list[str]
    python: str
    env: dict[str, str]

    def make_folder(self, folder: Path) -> Path:
        """Make a folder that the other user owns, below one that the user can traverse."""
        folder.parent.chmod(0o755)
        folder.mkdir()
        os.chown(folder, NOBODY, NOBODY)
        return folder


def find_other_user() -> OtherUser:
    """Return the other user; skip the test if the user cannot read a Python of this version and its packages."""
    # The interpreter of a virtual environment may be a link into root's home.
    python = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")
    packages = [path for path in sys.path if path.endswith("site-packages")]
    prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT), *packages]), "USER": "nobody"}
    check = [*prefix, str(python), "-c", "import ray, tests.slurm.light.runs"]
    if python is None or subprocess.run(check, env=env, cwd="/", capture_output=True).returncode:
        pytest.skip(f"no Python for another user: he may not read {ROOT} or its packages")
    return OtherUser(prefix, python, env)
