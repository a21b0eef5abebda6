"""What is shipped runs: each experiment preset of a real model, with a tiny random one of its family in its place.

Nothing else is changed but sizes: lengths, batches, steps and processes. `model.dtype` is what the presets get on a
GPU. Flash attention is not to be had on CPU; SDPA stands in for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.image_kit import write_rows
from tests.tiny_llama import build_tiny_llama, write_conversations
from tests.whole_run import exact_rows

ROOT = Path(__file__).parents[2]
AS_ON_A_GPU = ("model.dtype=bfloat16", "policy.num_threads=1", "logging.wandb.mode=disabled")
SHORT_TEXT = ("model.attention=sdpa", "supervised.batch_size=8", "supervised.max_tokens=256", "data.num_eval=4")


def train(run: Path, *words: str) -> list[dict[str, Any]]:
    """Run it to its end; its rows."""
    argv = [sys.executable, "-m", "slurm_rl", f"run_dir={run}", *AS_ON_A_GPU, *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=run.parent, env=env, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (run / "export" / "model.safetensors").is_file()
    return exact_rows(run)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_conversations(tmp_path_factory.mktemp("rows") / "train.jsonl", 36)


def train_supervised(task: str, run: Path, llama: Path, conversations: Path) -> list[dict[str, Any]]:
    words = (f"+exp={task}_llama3_8b", f"model.path={llama}", f"data.train={conversations}")
    steps = [row for row in train(run, *words, *SHORT_TEXT) if row["stage"] == task]
    assert len(steps) == 4
    assert all(row["policy/grad_norm"] > 0 for row in steps)
    return steps


@pytest.fixture(scope="module")
def reward_model(llama: Path, conversations: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What task=rm exports, which PPO's preset takes."""
    run = tmp_path_factory.mktemp("runs") / "rm"
    train_supervised("rm", run, llama, conversations)
    return run / "export"


@pytest.mark.parametrize("task", ["sft", "dpo"])
def test_supervised_presets_train(task: str, llama: Path, conversations: Path, tmp_path: Path) -> None:
    train_supervised(task, tmp_path / task, llama, conversations)


def test_ppo_with_a_critic_and_a_reward_model_trains(
    llama: Path, conversations: Path, reward_model: Path, tmp_path: Path
) -> None:
    rows = train(
        tmp_path / "ppo",
        "+exp=ppo_llama3_8b",
        f"model.path={llama}",
        f"reward.model.path={reward_model}",
        f"data.train={conversations}",
        "data.num_eval=4",
        "data.max_prompt_tokens=128",
        "rollout.max_tokens=16",
        "trainer.num_steps=2",
        "trainer.prompts_per_step=16",
    )
    steps = [row for row in rows if row["stage"] == "grpo"]
    assert len(steps) == 2
    assert all(row["policy/grad_norm"] > 0 and row["critic/loss"] > 0 for row in steps)
    assert all(row["reward/failed"] == 0 for row in steps)


def test_grpo_on_images_trains_and_syncs(tmp_path: Path) -> None:
    write_rows(tmp_path / "mathv60k", num_rows=32)
    rows = train(
        tmp_path / "grpo",
        "+exp=grpo_mathv60k",
        "model=tiny_qwen2_5_vl",
        "model.max_pixels=12544",
        f"data.root={tmp_path}",
        "data.num_eval=4",
        "data.max_prompt_tokens=400",
        "rollout.max_tokens=16",
        "trainer.num_steps=3",
        "trainer.prompts_per_step=8",
        "reward.num_workers=1",
    )
    steps = [row for row in rows if row["stage"] == "grpo"]
    assert len(steps) == 3
    assert all(row["sync/probe_difference"] >= 0 and row["mismatch/kl"] < 0.05 for row in steps)
