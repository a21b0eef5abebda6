"""The commands of the examples' READMEs at sizes for two cores, with real Ray, vLLM and torch on CPU.

examples/images: test_images.py. examples/sweep: tests/slurm/test_sweep.py.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.kit import EXAMPLES, read_commands, run_readme
from tests.tiny_models import SMALL_MODEL
from tests.unit.plugins.prepare.hub_server import Hub
from tests.unit.plugins.prepare.small_sets import GSM8K, gsm8k
from tests.whole_run import stage_rows

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


def test_readmes_have_sections_and_are_listed() -> None:
    assert len(NAMES) == 13
    listed = (EXAMPLES / "README.md").read_text()
    for name in NAMES:
        lines = (EXAMPLES / name / "README.md").read_text().splitlines()
        assert 20 <= len(lines) <= 60 and "OUTPUT" not in lines, name
        assert {"## Output", "## On a cluster", "## Adapt it"} <= set(lines), name
        assert read_commands(name) and f"({name}/README.md)" in listed
