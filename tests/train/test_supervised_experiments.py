"""The tiny experiments reach their goals, each within three minutes on two cores."""

import json
import math
from pathlib import Path

import pytest
import yaml

from slurm_rl.config.load import load_config
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.supervised.rank_info import RankInfo
from slurm_rl.trainers.supervised.run_supervised import run_training
from tests.whole_run import run_cli

pytestmark = pytest.mark.slow


def run_experiment(name: str, folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Return the first and the last evaluation."""
    run, config = RunDir(folder), load_config([f"+exp={name}"])
    run.config.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    run_training(run, config, RankInfo())
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    evaluations = [row for row in rows if row["stage"] == "eval"]
    return evaluations[0], evaluations[-1]


def test_sft_learns_to_add(tmp_path: Path) -> None:
    before, after = run_experiment("sft_tiny", tmp_path)
    assert before["eval/exact_match"] < 0.05
    assert after["eval/exact_match"] > 0.3


def test_reward_model_separates_right_from_wrong(tmp_path: Path) -> None:
    before, after = run_experiment("rm_tiny", tmp_path)
    assert before["eval/accuracy"] < 0.7
    assert after["eval/accuracy"] > 0.9


def test_dpo_prefers_right_sum(tmp_path: Path) -> None:
    before, after = run_experiment("dpo_tiny", tmp_path)
    assert before["eval/margin"] == 0.0
    assert after["eval/margin"] > 0.4
    assert math.exp(after["eval/chosen_logprob"]) > 10 * math.exp(before["eval/chosen_logprob"])


def test_ppo_gains_fifteen_points_of_reward(tmp_path: Path) -> None:
    """The whole pipeline: Ray, vLLM, policy, critic, reference."""
    run_cli(tmp_path, "+exp=ppo_tiny", f"run_dir={tmp_path / 'run'}")
    rows = [json.loads(line) for line in RunDir(tmp_path / "run").metrics.read_text().splitlines()]
    before, *_, after = [row["accuracy/sampled"] for row in rows if row["stage"] == "eval"]
    assert after >= before + 0.15
    steps = [row for row in rows if row["stage"] == "grpo"]
    assert max(row["critic/explained_variance"] for row in steps[-10:]) > 0
