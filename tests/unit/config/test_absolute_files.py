"""What a later command reads from another folder is named by its absolute path."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_rl.config.load import load_config


def test_files_of_this_folder_are_found_from_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen before: `resume` from another folder did not find a relative data.train."""
    monkeypatch.chdir(tmp_path)
    for name in ("rows.jsonl", "model"):
        (tmp_path / name).mkdir()
    words = ["+exp=demo", "data.train=rows.jsonl", "model=hf", "model.path=model", "reward.verifiers.arithmetic=1"]
    config = load_config(words)
    assert (config.data.train, config.model.path) == (f"{tmp_path}/rows.jsonl", f"{tmp_path}/model")


def test_names_of_the_hub_and_of_built_in_data_stay_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "addition").mkdir()  # somebody's folder
    config = load_config(["+exp=demo", "model=hf", "model.path=Qwen/Qwen3-0.6B"])
    assert (config.data.train, config.model.path) == ("addition", "Qwen/Qwen3-0.6B")
