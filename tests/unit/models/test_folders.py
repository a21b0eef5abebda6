import os
from pathlib import Path

import pytest

from slurm_rl.run_dir.io_errors import written_beside


def test_appears_when_block_ends(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "model"
    with written_beside(folder) as beside:
        (beside / "sub").mkdir()
        (beside / "sub" / "a").write_text("1")
        assert not folder.exists()
    assert (folder / "sub" / "a").read_text() == "1"
    assert [p.name for p in folder.parent.iterdir()] == ["model"]


def test_replaces_older_one(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for text in ("old", "new"):
        with written_beside(folder) as beside:
            (beside / text).write_text(text)
    assert [p.name for p in folder.iterdir()] == ["new"]
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_error_leaves_older_one(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with written_beside(folder) as beside:
        (beside / "old").write_text("")
    with pytest.raises(KeyError), written_beside(folder) as beside:
        (beside / "half").write_text("")
        raise KeyError
    assert [p.name for p in folder.iterdir()] == ["old"]
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_permissions_follow_umask(tmp_path: Path) -> None:
    folder, before = tmp_path / "model", os.umask(0o027)
    try:
        with written_beside(folder) as beside:
            (beside / "weights").touch(mode=0o600)
    finally:
        os.umask(before)
    assert (folder / "weights").stat().st_mode & 0o777 == 0o640
