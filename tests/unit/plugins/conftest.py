from pathlib import Path

import pytest

from slurm_rl.run_dir.run_dir import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "addition-1")
