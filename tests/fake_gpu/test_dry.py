"""Memory planned and found at real sizes (docs/fake-gpu.md); on a fake machine in dry mode."""

import os
import subprocess

import pytest

from tests.fake_gpu.test_device import PYTHON, pytestmark  # noqa: F401  (the same environment)
from tests.lock import ROOT


@pytest.mark.timeout(1300)
@pytest.mark.parametrize(("name", "ranks", "tokens"), [("0.5B", 1, 8192), ("1.5B", 2, 8192)])
def test_memory_found_is_planned_to_ten_percent(name: str, ranks: int, tokens: int) -> None:
    words = [PYTHON, "-m", "tests.fake_gpu.dry", name, str(ranks), str(tokens)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    cells = [cell.split(" / ") for cell in done.stdout.splitlines()[-1].split(" | ")[3:]]
    for planned, found in cells:
        assert float(found.strip(" |")) == pytest.approx(float(planned), rel=0.1), done.stdout
