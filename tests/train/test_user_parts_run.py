"""A run with an advantage, a loss, a filter and a reward from a user's file, with real Ray, vLLM and torch on CPU."""

import shutil
from pathlib import Path

import pytest

from slurm_rl.run_dir.run_dir import RunDir
from tests.whole_run import exact_rows, finish, start_run, wait_for

MINE = Path(__file__).parents[1] / "unit" / "config" / "user_files"
SHORT = ("trainer.num_steps=3", "eval.interval=3", "checkpoint.interval=3")
PARTS = (
    "algorithm.advantage=mine/my_parts.py:group_norm",
    "algorithm.loss=./mine/my_parts.py:grpo",
    "algorithm.filters.function=mine/my_parts.py:keep_signal",
    "reward.function=mine/my_parts.py:score",
)


@pytest.mark.slow
def test_copied_built_in_parts_give_same_metrics(tmp_path: Path) -> None:
    """The files are deleted before anything reads them: the run has copies, including their imports."""
    shutil.copytree(MINE, tmp_path / "mine")
    mine, ours = tmp_path / "with-mine", tmp_path / "with-ours"
    process = start_run(mine, *SHORT, *PARTS)
    wait_for(RunDir(mine).job.is_file, "the run to start", process)
    shutil.rmtree(tmp_path / "mine")
    finish(process)
    finish(start_run(ours, *SHORT, "algorithm.filters.drop_zero_variance_groups=true"))
    rows, wanted = exact_rows(mine), exact_rows(ours)
    for row in rows:
        row.pop("score/reward", None)  # a function's reward is also a score of that name
    assert rows == wanted
    trained = [(row["tokens/trained"], row["tokens/sampled"]) for row in rows if row["stage"] == "grpo"]
    assert len(trained) == 3
    assert any(0 < kept < sampled for kept, sampled in trained), "the filter left nothing out"
