"""The commands of the examples' READMEs at sizes for two cores, with real Ray, vLLM and torch on CPU.

examples/images: test_images.py. examples/sweep: tests/slurm/test_sweep.py.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.metrics_page import find_unexplained
from tests.examples.kit import EXAMPLES, read_commands, run_readme
from tests.tiny_models import SMALL_MODEL, shrink
from tests.unit.plugins.prepare.hub_server import Hub
from tests.unit.plugins.prepare.small_sets import GSM8K, gsm8k
from tests.whole_run import exact_rows, stage_rows

NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/README.md"))


@pytest.mark.slow
def test_own_data_and_reward_train(tmp_path: Path) -> None:
    sizes = ("trainer.num_steps=6", "data.num_eval=20")
    run_readme("own_data", tmp_path, {"own_data_tiny": sizes})
    steps = stage_rows(tmp_path / "runs/own_data")
    assert len(steps) == 6
    # Only this example's reward scores single letters, so it is above the exact-match score.
    assert all(0 < row["score/scores"] < row["reward/mean"] < 1 for row in steps)
    assert all(row["policy/grad_norm"] > 0 for row in steps)


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Stand-in for the Hub: one-digit sums in the columns of GSM8K."""
    server = Hub()
    sums = [{"question": f"{n % 8} + {n // 8}?", "answer": f"That is\n#### {n % 8 + n // 8}"} for n in range(72)]
    server.repos[GSM8K] = gsm8k(train=sums[:64], test=sums[64:])
    yield server
    server.close()


@pytest.mark.slow
def test_gsm8k_from_prepare_with_math_verify(hub: Hub, tmp_path: Path) -> None:
    sizes = ("warmup.num_steps=40", "trainer.num_steps=2", "trainer.prompts_per_step=8")
    env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": ""}
    run_readme("gsm8k", tmp_path, {"gsm8k_tiny": sizes}, env)
    steps = stage_rows(tmp_path / "runs/gsm8k")
    assert len(steps) == 2
    assert any(row["score/math"] > 0 for row in steps), "nothing was boxed"
    assert all(row["reward/failed"] == 0 for row in steps)


@pytest.mark.slow
def test_programs_in_sandbox(tmp_path: Path) -> None:
    sizes = ("trainer.num_steps=2", "algorithm.group_size=4", "data.num_eval=4")
    run_readme("code", tmp_path, {"programs_tiny": (), "code_tiny": sizes})
    steps = stage_rows(tmp_path / "runs/code")
    assert len(steps) == 2
    assert all(0 < row["score/code"] < 1 and row["reward/failed"] == 0 for row in steps)


@pytest.mark.slow
def test_sft_then_dpo_in_bfloat16(tmp_path: Path) -> None:
    run_readme("sft_dpo", tmp_path, dict.fromkeys(("chats_sft_tiny", "chats_dpo_tiny"), ("model.dtype=bfloat16",)))
    losses = [row["eval/loss"] for row in stage_rows(tmp_path / "runs/chats_sft", "eval")]
    assert losses[-1] < losses[0] / 2
    evaluations = stage_rows(tmp_path / "runs/chats_dpo", "eval")
    assert evaluations[0]["eval/margin"] == pytest.approx(0, abs=0.05) and evaluations[-1]["eval/margin"] > 0.1
    # DPO started from the SFT checkpoint.
    start, left = (
        (tmp_path / "runs" / name / "model.safetensors") for name in ("chats_sft/export", "chats_dpo/export")
    )
    assert start.read_bytes() != left.read_bytes()


@pytest.mark.slow
def test_ppo_uses_trained_reward_model(tmp_path: Path) -> None:
    sizes = (SMALL_MODEL, "model.dtype=bfloat16")
    ppo = (*sizes, "reward.model.dtype=bfloat16", "trainer.num_steps=3", "trainer.prompts_per_step=16")
    run_readme("ppo_reward_model", tmp_path, {"sums_rm_tiny": sizes, "sums_ppo_tiny": ppo})
    first, *_, last = stage_rows(tmp_path / "runs/sums_rm", "eval")
    assert last["eval/accuracy"] > 0.9 and last["eval/loss"] < first["eval/loss"] / 2
    steps = stage_rows(tmp_path / "runs/sums_ppo")
    assert len(steps) == 3
    assert all(row["policy/grad_norm"] > 0 and row["critic/loss"] > 0 for row in steps)
    assert all(row["reward/mean"] == pytest.approx(row["score/model"]) for row in steps)


@pytest.mark.slow
def test_script_starts_and_reads_two_runs(tmp_path: Path) -> None:
    sizes = (SMALL_MODEL, "supervised.max_steps=4", "optim.warmup_steps=1", "eval.interval=2")
    sizes += ("data.largest_addend=19", "data.num_eval=20")
    lines = run_readme("python_api", tmp_path, {"rates.py": sizes}).splitlines()
    assert [line.split()[0] for line in lines] == ["0.0002", "0.002"] * 2
    slow, fast = ([float(word) for word in line.split()[3:]] for line in lines[2:])
    assert len(slow) == len(fast) == 3 and fast[-1] < slow[-1] < slow[0]


def check_episodes(run: Path, printed: str) -> list[dict[str, Any]]:
    """Check the samples and metrics of two steps of episodes; return the steps."""
    assert "step 2, reward" in printed and "turn 1" in printed
    assert find_unexplained({key for row in exact_rows(run) for key in row}) == set()
    steps = stage_rows(run)
    assert len(steps) == 2
    # Engine and policy logprobs agree in all turns, also across tool calls and results.
    assert all(row["mismatch/max"] < 1e-4 for row in steps)
    return steps


@pytest.mark.slow
def test_calculator(tmp_path: Path) -> None:
    # The first stage keeps its length: with fewer steps no sum is right and there is no reward signal.
    sizes = ("trainer.num_steps=2", "trainer.prompts_per_step=16", "data.num_eval=20", "eval.interval=2")
    printed = run_readme("calculator", tmp_path, {"calls_tiny": (), "calculator_tiny": sizes})
    for row in check_episodes(tmp_path / "runs/calculator", printed):
        assert row["tools/calls_mean"] > 0 and row["episode/turns_mean"] > 1 and 0 < row["reward/mean"] < 1


@pytest.mark.slow
def test_external_program_is_trained(tmp_path: Path) -> None:
    sizes = (shrink("guessing_game/model"), "trainer.num_steps=2", "trainer.prompts_per_step=8", "data.num_eval=10")
    sizes += ("algorithm.group_size=4", "eval.interval=2", "eval.num_samples=1", "env.agent_concurrency=2")
    printed = run_readme("openai_program", tmp_path, {"openai_program_tiny": sizes})
    assert "observation" in printed
    for row in check_episodes(tmp_path / "runs/openai_program", printed):
        assert row["reward/failed"] == 0 and row["policy/grad_norm"] > 0
        assert 1 < row["episode/turns_mean"] <= 4 and 0 < row["episode/masked"] < 0.5


def test_readmes_have_sections_and_are_listed() -> None:
    assert len(NAMES) == 13
    listed = (EXAMPLES / "README.md").read_text()
    for name in NAMES:
        lines = (EXAMPLES / name / "README.md").read_text().splitlines()
        assert 20 <= len(lines) <= 60 and "OUTPUT" not in lines, name
        assert {"## Output", "## On a cluster", "## Adapt it"} <= set(lines), name
        assert read_commands(name) and f"({name}/README.md)" in listed
