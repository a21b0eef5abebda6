"""A second host on the same folders: another hostname and PID namespace."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def start_on_other_host(
    name: str, script: str, *words: str, env: Mapping[str, str] = os.environ
) -> subprocess.Popen[str]:
    """Run Python there; needs root or user namespaces."""
    enter = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid() != 0:
        enter.append("--map-root-user")
    if subprocess.run([*enter, "true"], capture_output=True).returncode:
        pytest.skip("another host needs namespaces")
    argv = [*enter, "sh", "-c", 'hostname "$0"; exec "$@"', name, sys.executable, "-c", script, *words]
    full = {**env, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=full)
