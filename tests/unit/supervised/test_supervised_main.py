"""What `torchrun -m slurm_rl.supervised` refuses before it trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError, RunDirError
from slurm_rl.run_dir import RunDir
from slurm_rl.supervised.__main__ import begin, find_run, main


def test_the_run_must_be_named_and_of_torchruns_tasks() -> None:
    with pytest.raises(ConfigError, match="run_dir must be named"):
        find_run(load_config(["+exp=sft_tiny"]))
    with pytest.raises(ConfigError, match="task must be one of sft, rm, dpo; got grpo"):
        find_run(load_config(["+exp=demo", "run_dir=a"]))


def test_the_same_words_go_on_and_others_do_not(tmp_path: Path) -> None:
    words = ["+exp=sft_tiny", f"run_dir={tmp_path / 'a'}"]
    run, config = RunDir(tmp_path / "a"), load_config(words)
    begin(run, config)
    begin(run, config)
    assert run.require() is run
    with pytest.raises(ConfigError, match=r"other values under seed, optim than in .*config\.yaml"):
        begin(run, load_config([*words, "seed=1", "optim.lr=1"]))


def test_a_run_of_an_older_version_goes_on(tmp_path: Path) -> None:
    """Its config.yaml lacks the keys that came later, which are at their defaults."""
    run, config = RunDir(tmp_path / "a"), load_config(["+exp=sft_tiny", f"run_dir={tmp_path / 'a'}"])
    begin(run, config)
    tree = yaml.safe_load(run.config.read_text())
    del tree["data"]["chat_template_kwargs"], tree["data"]["overlong"]
    run.config.write_text(yaml.safe_dump(tree | {"supervised": tree["supervised"] | {"overlong": "error"}}))
    begin(run, config)


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(RunDirError, match="new or empty folder"):
        begin(RunDir(tmp_path), load_config(["+exp=sft_tiny"]))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_bad_words_end_with_status_2_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["x", "+exp=sft_tiny", "optim.rl=1"])
    assert main() == 2
    error = capsys.readouterr().err
    assert "optim.rl" in error and "Traceback" not in error
