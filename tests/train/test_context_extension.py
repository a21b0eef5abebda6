"""With `model.rope_scaling` a real vLLM engine and the policy agree per token at four times the model's context."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig

from tests.tiny_models import TinyModel, build_tiny_model
from tests.train.conftest import run_script
from tests.whole_run import stage_rows, train

CONTEXT = 32
SCORE = """
def score(queries, prompts, labels):
    return [float(query[len(prompt):].count("1")) for query, prompt in zip(queries, prompts)]
"""


@pytest.mark.parametrize(
    "families",
    [("qwen3",), pytest.param(("llama", "qwen2", "mistral", "qwen2_5_vl"), marks=pytest.mark.slow)],
    ids="-".join,
)
def test_engine_and_policy_agree_beyond_context(families: tuple[str, ...], tmp_path: Path) -> None:
    """YaRN for Qwen3, Llama and Qwen2.5-VL, linear for Qwen2, LongRoPE for Mistral."""
    for family, found in run_script("rope_script", tmp_path, *families).items():
        assert found["longest"] > 3 * 64, "the context has 64 tokens"
        assert found["scaled"] < 1e-5, family
        assert found["plain"] > 1e-3, f"{family}: the scaling has no effect"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_grpo_trains_beyond_context(tmp_path: Path) -> None:
    """The prompt alone has three times the context; the run's own probe and per-token comparison are exact."""
    shape = TinyModel(hidden_size=64, num_layers=2, num_heads=2, num_kv_heads=1, context_length=CONTEXT)
    build_tiny_model(shape, 0, tmp_path / "model")
    rows = [{"prompt": f"{index:0100d}=", "answer": "1"} for index in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "parts.py").write_text(SCORE)
    words = ["model=hf", f"model.path={tmp_path / 'model'}", f"data.train={tmp_path / 'rows.jsonl'}"]
    words += ["data.num_eval=4", "data.max_prompt_tokens=101", "rollout.max_tokens=27"]
    words += ["reward.function=parts.py:score"]
    words += ["warmup.num_steps=0", "trainer.num_steps=3", "trainer.prompts_per_step=8", "policy.num_threads=1"]
    train(tmp_path / "run", *words, "model.rope_scaling={factor:4}", base=["+exp=demo"])
    steps = stage_rows(tmp_path / "run")
    assert len(steps) == 3
    assert max(max(row["mismatch/max"], row["sync/probe_difference"]) for row in steps) < 1e-5
    assert any(row["policy/grad_norm"] > 0 for row in steps)
    exported = AutoConfig.from_pretrained(tmp_path / "run" / "export")
    assert exported.rope_parameters["rope_type"] == "yarn"
    assert exported.max_position_embeddings == 4 * CONTEXT
