"""No locked package has a known vulnerability with a fix, except the excused ones."""

import json
import subprocess
import sys

import pytest

from tests.lock import LOCKS, ROOT

EXCUSED: dict[str, str] = {}
"""Identifier of a vulnerability -> reason why it does not affect us."""


@pytest.mark.slow
@pytest.mark.parametrize("name", LOCKS)
def test_locked_packages_have_no_known_vulnerability(name: str) -> None:
    # The database of OSV, not the package index.
    argv = [sys.executable, "-m", "pip_audit", "--vulnerability-service=osv", "--disable-pip", "--require-hashes"]
    argv += ["--progress-spinner=off", "--format=json", f"--requirement={ROOT / LOCKS[name].path}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    if "ConnectionError" in done.stderr or "NameResolutionError" in done.stderr:
        pytest.skip(f"the database cannot be reached from here: {done.stderr.splitlines()[-1][:200]}")
    found = {
        vulnerability["id"]: f"{package['name']} {package['version']}, mended in {vulnerability['fix_versions']}"
        for package in json.loads(done.stdout)["dependencies"]
        for vulnerability in package.get("vulns", [])
        if vulnerability["fix_versions"]
    }
    assert {one: words for one, words in found.items() if one not in EXCUSED} == {}
