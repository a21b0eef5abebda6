"""With `model.rope_scaling` a real vLLM engine and the policy agree per token at four times the model's context."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from slurm_rl.config.model import ModelConfig
from slurm_rl.models.rope import build_overrides, load_architecture
from tests.tiny_models import SMALL, TinyModel, build_tiny_model
from tests.train.conftest import run_script
from tests.whole_run import stage_rows, train

CONTEXT = 32
LONG = {"rope_type": "longrope", "long_factor": [1 + place / 4 for place in range(16)]}
SCORE = """
def score(queries, prompts, labels):
    return [float(query[len(prompt):].count("1")) for query, prompt in zip(queries, prompts)]
"""


@pytest.mark.parametrize(
    "scaling", [{}, {"beta_fast": 16, "attention_factor": 1.3}, {"rope_type": "linear"}, LONG], ids=repr
)
def test_rotations_of_vllm_equal_transformers(
    scaling: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every angle up to four times the context, to the bit, without an engine."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope, phi3_long_rope_scaled_rope

    longest = SimpleNamespace(model_config=SimpleNamespace(max_model_len=4 * SMALL.context_length))
    monkeypatch.setattr(phi3_long_rope_scaled_rope, "get_current_vllm_config", lambda: longest)
    folder = SMALL.write(tmp_path / "model")
    model = ModelConfig(path=str(folder), rope_scaling={"factor": 4, **scaling})
    rotary: Any = AutoModelForCausalLM.from_config(load_architecture(folder, model)).model.rotary_emb
    length = 4 * SMALL.context_length
    expected = rotary(torch.zeros(1), torch.arange(length)[None])
    fields = build_overrides(folder, model)
    with set_current_vllm_config(VllmConfig()):
        rope: Any = get_rope(32, fields["max_position_embeddings"], rope_parameters=fields["rope_parameters"])
    table = rope.cos_sin_cache if hasattr(rope, "cos_sin_cache") else rope.long_short_cos_sin_cache
    for found, angles in zip(table[-length:].chunk(2, -1), expected, strict=True):
        assert torch.equal(found, angles[0, :, :16])


@pytest.mark.parametrize(
    "families",
    [("qwen3",), pytest.param(("llama", "qwen2", "mistral"), marks=pytest.mark.slow)],
    ids="-".join,
)
def test_engine_and_policy_agree_beyond_context(families: tuple[str, ...], tmp_path: Path) -> None:
    """YaRN for Qwen3 and Llama, linear for Qwen2, LongRoPE for Mistral."""
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
