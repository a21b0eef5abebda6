"""The node-local folder goes, also while something still writes into it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.node.ray_cluster import remove_tmp_dir


def test_a_folder_into_which_a_dying_process_writes_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "srl"
    folder.mkdir()
    remove, late = shutil.rmtree, [folder / "first", folder / "second"]

    def remove_and_write(path: Path, **options: Any) -> None:
        remove(path, **options)
        if late:
            late.pop().mkdir(parents=True)

    monkeypatch.setattr(shutil, "rmtree", remove_and_write)
    remove_tmp_dir(folder)
    assert not folder.exists()
    assert not late


def test_a_folder_that_is_not_there_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"slept for {seconds} s"))
    remove_tmp_dir(tmp_path / "absent")
