import os
import stat
from pathlib import Path

import pytest

from slurm_rl.errors import RunDirError
from slurm_rl.launch.controller.create import check_is_free, snapshot_code
from slurm_rl.run_dir.run_dir import RunDir
from tests.other_user import STRANGER


def test_empty_folder_of_other_user_is_refused_before_writing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    check_is_free(RunDir(folder))
    if os.geteuid() != 0:
        pytest.skip("giving a folder away needs root")
    os.chown(folder, STRANGER, STRANGER)
    for refuse in (lambda: check_is_free(RunDir(folder)), lambda: snapshot_code(folder / "code")):
        with pytest.raises(RunDirError, match=r"belong to you; got .*run of "):
            refuse()
    assert list(folder.iterdir()) == []


def test_code_is_private_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        (tmp_path / "run").mkdir()
        snapshot_code(tmp_path / "run" / "code")
    finally:
        os.umask(before)
    paths = [tmp_path / "run", *(tmp_path / "run").rglob("*")]
    assert len(paths) > 100
    assert [path for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o022] == []
