"""Run each shipped preset of a real model with a tiny random one of its family.

Only sizes change: lengths, batches, steps and processes. `model.dtype` is that of GPUs; tests/train/test_attention.py
covers `model.attention=auto`. In `make test`, tests/examples uses these presets with another tiny model.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.tiny_llama import build_tiny_llama, write_conversations
from tests.whole_run import exact_rows, run_cli

pytestmark = pytest.mark.slow

AS_ON_A_GPU = ("model.dtype=bfloat16", "policy.num_threads=1", "logging.wandb.mode=disabled")
SHORT_TEXT = ("supervised.batch_size=8", "supervised.max_tokens=256", "data.num_eval=4")


def train(run: Path, *words: str) -> list[dict[str, Any]]:
    """Run to the end; return the metrics rows."""
    run_cli(run.parent, f"run_dir={run}", *AS_ON_A_GPU, *words)
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
    """Export of task=rm, as PPO's preset expects."""
    run = tmp_path_factory.mktemp("runs") / "rm"
    train_supervised("rm", run, llama, conversations)
    return run / "export"


@pytest.mark.parametrize("task", ["sft", "dpo"])
def test_supervised_presets_train(task: str, llama: Path, conversations: Path, tmp_path: Path) -> None:
    train_supervised(task, tmp_path / task, llama, conversations)


def test_ppo_with_critic_and_reward_model_trains(
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
