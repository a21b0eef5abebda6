"""What `torchrun -m slurm_rl.trainers.supervised` refuses before it trains."""

from pathlib import Path

import pytest
import yaml

from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError, LeaseError, RunDirError
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.run_dir.run_lock import LockHolder, acquire
from slurm_rl.trainers.supervised.__main__ import begin, find_run, hold_by_hand, main, open_run


def test_the_run_must_be_named_and_of_torchruns_tasks() -> None:
    with pytest.raises(ConfigError, match="run_dir must be set"):
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


def test_begin_takes_defaults_for_keys_that_the_saved_config_lacks(tmp_path: Path) -> None:
    run, config = RunDir(tmp_path / "a"), load_config(["+exp=sft_tiny", f"run_dir={tmp_path / 'a'}"])
    begin(run, config)
    tree = yaml.safe_load(run.config.read_text())
    del tree["data"]["chat_template_kwargs"], tree["data"]["overlong_prompts"]
    run.config.write_text(yaml.safe_dump(tree))
    begin(run, config)


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(RunDirError, match="new or empty folder"):
        begin(RunDir(tmp_path), load_config(["+exp=sft_tiny"]))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("words", [["+exp=sft_tiny", "run_dir={run}"], ["{run}"]], ids=["overrides", "run"])
def test_a_run_that_another_holds_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    run = RunDir(tmp_path / "a")
    begin(run, load_config(["+exp=sft_tiny", f"run_dir={run.path}"]))
    monkeypatch.setattr("sys.argv", ["x", *(word.format(run=run.path) for word in words)])
    with acquire(run.lease, LockHolder.of_this_process("local", "7")):
        assert main() == LeaseError.exit_code
    assert "a run can have only one controller at a time; got local job 7" in capsys.readouterr().err
    assert not run.attempts.exists()


def test_a_rank_that_an_agent_started_asks_for_no_lease(tmp_path: Path) -> None:
    """Its controller has it."""
    run = RunDir(tmp_path / "a")
    begin(run, load_config(["+exp=sft_tiny", f"run_dir={run.path}"]))
    assert not open_run([str(run.path), "--attempt", "1"]).is_by_hand


def test_a_run_by_hand_is_held_until_its_end(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "a")
    with hold_by_hand(run):
        assert run.epoch == 1
        with pytest.raises(LeaseError, match="torchrun job"), hold_by_hand(RunDir(run.path)):
            raise AssertionError("two at once")
    with hold_by_hand(run):
        assert run.epoch == 2


def test_bad_words_end_with_status_2_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["x", "+exp=sft_tiny", "optim.rl=1"])
    assert main() == 2
    error = capsys.readouterr().err
    assert "optim.rl" in error and "Traceback" not in error
