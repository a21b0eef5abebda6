"""Every family of text models is exact in the documented layout (packed or one per row), or refused."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import logging

from slurm_rl.algorithms.packing import build_packed_batch
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.model_checks import DISAGREEING
from slurm_rl.models.forward import RowReader
from slurm_rl.models.head import _BENDS, apply_head
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.models.row_check import build_probe, check_rows
from slurm_rl.models.row_layout import build_row_layout
from tests.tiny_models import TinyModel, build_tiny_model
from tests.train.model_families import (
    CPU,
    ENGINES,
    EXACT,
    FAMILIES,
    LORA_PRESETS,
    PAGE,
    build_model,
    build_sequences,
    render_share,
    study,
    study_lora,
)

logging.set_verbosity_error()
FAST = (
    *("llama", "gemma3_text", "deepseek_v3", "qwen3_moe", "qwen3_next"),
    *("mamba2", "jamba", "recurrent_gemma", "gpt2", "bert"),
)
"""One of each class: dense, windows, latent attention, experts, linear attention, state spaces, no `nn.Linear`."""
CASES = [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in FAMILIES]
LINES = dict(
    line.strip("| ").split(" | ", 1) for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"
)


@pytest.mark.parametrize("family", CASES)
def test_family_is_exact_or_refused_as_documented(family: str) -> None:
    found = study(family)
    rows, *errors = LINES[family].split(" | ")
    assert found.rows == rows
    assert not found.crosses
    if rows != "refused":
        assert found.as_chosen < EXACT
        assert (found.if_packed < EXACT) == (rows == "packed") == (errors[0] == "exact")


@pytest.mark.parametrize("preset", LORA_PRESETS)
@pytest.mark.parametrize("family", CASES)
def test_lora_trained_merged_and_exported_agree(family: str, preset: str) -> None:
    found = study_lora(family, preset)
    assert LINES[family].split(" | ")[3 + list(LORA_PRESETS).index(preset)] == render_share(found)
    if found.layers is None:
        assert found.refusal.startswith("model.lora")
        return
    assert found.learned > 1e-4
    assert max(found.merged, found.reloaded) < 1e-5
    assert found.misfits == ()


def test_page_lists_tested_families() -> None:
    assert set(LINES) - {"model type", "---"} == set(FAMILIES)


def test_families_that_differ_from_engine_are_refused() -> None:
    with ENGINES.open(encoding="utf-8", newline="") as file:
        found = {row["family"]: row["result"] for row in csv.DictReader(file)}
    differing = {name for name, result in found.items() if result[0].isdigit() and not result.endswith("in bfloat16")}
    refused = {name for name, dtype in DISAGREEING if dtype == "float32"}
    assert differing <= refused and not {name for name in refused if found[name] == "exact"}


def test_probe_shares_row() -> None:
    """Otherwise the check would test nothing."""
    lengths = [len(sequence.token_ids) for sequence in build_probe(build_model("qwen3").config)[0]]
    assert build_row_layout(lengths).num_rows == 1
    assert build_row_layout(lengths, packed=False).num_rows == 3


@pytest.mark.parametrize(("family", "packed"), [("qwen3", True), ("qwen3_moe", True), ("lfm2", False), ("opt", False)])
def test_leak_shows_in_bfloat16(family: str, packed: bool) -> None:
    """In bfloat16 rounding is larger than some leaks."""
    assert check_rows(RowReader(build_model(family, torch.bfloat16), CPU), torch.bfloat16).packed == packed


def test_row_check_leaves_model_unchanged() -> None:
    model = build_model("qwen3").train()
    state = torch.random.get_rng_state()
    check_rows(RowReader(model, CPU, chunk_tokens=8), torch.float32)
    assert model.training
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_row_check_detects_one_leaking_row(tmp_path: Path) -> None:
    """Logprobs before and after a step, for a model with convolutions that cross the boundary."""
    build_tiny_model(TinyModel(), 0, tmp_path)  # for its tokenizer
    build_model("lfm2").save_pretrained(tmp_path)
    config, policy = ModelConfig(path=str(tmp_path)), PolicyConfig(num_threads=1)
    engine = PolicyEngine(tmp_path, config, policy, OptimConfig(lr=1e-2), temperature=1.0)
    assert not engine.rows.packed
    assert "tokens attend to positions that they must not see" in engine.rows.reason
    for _ in range(2):
        together = engine.compute_logprobs([build_sequences()])[0]
        apart = [engine.compute_logprobs([[sequence]])[0][0] for sequence in build_sequences()]
        for one, other in zip(together, apart, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
        engine.train([build_sequences()], lambda _, logprobs, __: (-logprobs.mean(), {}), 1e-2)


@pytest.mark.parametrize("family", ["gemma2", "cohere", "granite", "falcon_h1"])
def test_chunked_head_equals_logits_of_model(family: str) -> None:
    """Logprobs and every gradient."""
    model: Any = build_model(family)
    for name in ("logit_scale", "logits_scaling", "lm_head_multiplier"):
        for holder in (model, model.base_model, model.config):
            if hasattr(holder, name):
                setattr(holder, name, 0.3)
    model.config.final_logit_softcapping = 2.0 if family == "gemma2" else None
    assert any(getattr(model.config, name, None) not in (None, 1.0) for name in _BENDS)
    batch = build_packed_batch(build_sequences())
    found = []
    for chunk in (None, 7):
        model.zero_grad()
        logprobs, _ = RowReader(model, CPU, chunk_tokens=chunk, packed=False).forward(batch, 0.7)
        logprobs.sum().backward()
        found.append((logprobs.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=1e-5)
    for chunked, whole in zip(found[1][1], found[0][1], strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-4, atol=1e-5 * float(whole.abs().max()) + 1e-7)
    check_rows(RowReader(model, CPU, chunk_tokens=4), torch.float32)


def test_unsupported_head_is_refused_chunks() -> None:
    """It multiplies where Granite divides."""
    model = build_model("hyperclovax")
    model.config.logits_scaling = 0.3
    with pytest.raises(ConfigError, match=r"policy\.logprob_chunk_tokens.*standard deviations.*=null"):
        check_rows(RowReader(model, CPU, chunk_tokens=4), torch.float32)
    check_rows(RowReader(model, CPU), torch.float32)


def test_model_that_mixes_shared_prompts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"policy\.prefix_sharing.*=false"):
        check_rows(RowReader(build_model("nemotron_h"), CPU, prefix_sharing=True), torch.float32)
    assert check_rows(RowReader(build_model("llama"), CPU, prefix_sharing=True), torch.float32).packed


def test_real_attention_chunk_is_recognized() -> None:
    """The attention chunk, thousands of tokens, is longer than the check's row."""
    model = build_model("llama4_text")
    model.config.attention_chunk_size = 8192
    found = check_rows(RowReader(model, CPU), torch.float32)
    assert not found.packed
    assert "8192 tokens of the row" in found.reason


def test_half_head_sums_in_float32() -> None:
    """Compare with a float64 product; a bfloat16 linear layer rounds its sums."""
    torch.manual_seed(0)
    head = torch.nn.Linear(64, 9000).bfloat16()
    hidden = torch.randn(3, 64).bfloat16().requires_grad_()
    exact = hidden.double() @ head.weight.double().t() + head.bias.double()
    logits = apply_head(head, hidden)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), exact, rtol=0, atol=1e-5)
    assert float((head(hidden).double() - exact).abs().max()) > 1e-3
    logits.square().sum().backward()
    gradients = [hidden.grad, head.weight.grad, head.bias.grad]
    hidden.grad = None
    head.zero_grad()
    head(hidden).float().square().sum().backward()
    for ours, plain in zip(gradients, [hidden.grad, head.weight.grad, head.bias.grad], strict=True):
        assert ours is not None and plain is not None
        torch.testing.assert_close(ours.float(), plain.float(), rtol=0.02, atol=0.02 * float(plain.abs().max()))
