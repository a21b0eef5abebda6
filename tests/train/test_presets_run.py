"""Run each shipped preset of a real model with a tiny random one of its family.

Only sizes change: lengths, batches, steps and processes. `model.dtype` is that of GPUs; tests/train/test_attention.py
covers `model.attention=auto`. In `make test`, tests/examples uses these presets with another tiny model.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples.kit import EXAMPLES, LOCAL_OVERRIDES
from tests.tiny_llama import build_tiny_llama, write_conversations
from tests.tiny_models import SMALL_MODEL, TinyModel, shrink
from tests.whole_run import exact_rows, run_cli

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

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


WORLD = '''
from slurm_rl.envs.environment import Environment, Step


class Higher(Environment):
    """Each says a digit; then the first may say another, of which alone it knows that it lost or won."""

    def reset(self, row, seed):
        self.said = []

    def step(self, reply):
        self.said.append(int(reply.text) if reply.text.isdigit() else -1)
        match len(self.said):
            case 1:
                return Step("?", agent="black")
            case 2:
                return Step("<" if self.said[0] < self.said[1] else ">", agent="", begins=True)
            case _:
                won = float(self.said[2] > self.said[1]) * 2 - 1
                return Step(done=True, rewards={"": won, "black": -won})
'''
SHORT_GRPO = ("trainer.num_steps=2", "trainer.prompts_per_step=8", "algorithm.group_size=4", "eval.interval=2")
TEXT = ("data.num_eval=4", "warmup.num_steps=0", *SHORT_GRPO)
GAMER = shrink("guessing_game/model")
GAME = ("+exp=guessing_game_tiny", GAMER, *TEXT)
GAMES = "+data.sources.games"
MIXTURE = (
    "+exp=demo",
    *(word for word in TEXT if word != "data.num_eval=4"),
    TinyModel("0123456789+=?<>!", None, 64, 2, 2, 1).word,
    "rollout.max_tokens=8",
    "data.train=''",
    "+data.sources.sums.train=addition",
    "+data.sources.sums.num_eval=4",
    "+data.sources.sums.temperature=0.7",
    f"{GAMES}.train=data/digits.jsonl",
    f"{GAMES}.num_eval=4",
    f"{GAMES}.env.name=examples/guessing_game/game.py:Guess",
    f"{GAMES}.env.max_turns=4",
    f"{GAMES}.env.turn_tokens=1",
)
CELLS: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {
    ("dapo", "turns"): ("guessing_game", GAME),
    ("ppo", "agents"): ("guessing_game", (*GAME, "env.name=higher.py:Higher")),
    ("ppo", "mixture"): ("guessing_game", MIXTURE),
    ("ppo", "lora"): ("guessing_game", ("+exp=demo", "+lora=all_linear", SMALL_MODEL, *TEXT)),
    ("gspo", "programs"): ("openai_program", ("+exp=openai_program_tiny", GAMER, *TEXT)),
    ("grpo", "images"): ("images", ("+exp=images_tiny", *SHORT_GRPO, "algorithm.kl.coef=0.01")),
}
"""(preset, kind) -> example with its experiments, and overrides."""


@pytest.mark.parametrize("cell", CELLS, ids=" ".join)
def test_run_of_preset_and_kind_finishes_and_moves_policy(cell: tuple[str, str], tmp_path: Path) -> None:
    preset, _ = cell
    example, words = CELLS[cell]
    (tmp_path / "examples").symlink_to(EXAMPLES)
    (tmp_path / "higher.py").write_text(WORLD)
    data = "images" if example == "images" else "guessing_game"
    subprocess.run([sys.executable, EXAMPLES / data / "make_data.py"], cwd=tmp_path, check=True)
    run = tmp_path / "run"
    first = ["--config-dir", str(EXAMPLES / example), words[0], f"+algorithm={preset}"]
    run_cli(tmp_path, f"run_dir={run}", *first, *words[1:], *LOCAL_OVERRIDES)
    steps = [row for row in exact_rows(run) if row["stage"] == "grpo"]
    assert len(steps) == 2
    assert any(row.get("policy/grad_norm", 0.0) > 0 for row in steps)
    assert all(row["critic/loss"] > 0 for row in steps if preset == "ppo")
    assert all(row["reward/failed"] == 0 for row in steps)
