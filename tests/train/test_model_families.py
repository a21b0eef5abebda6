"""Every family of text models is exact in the documented layout (packed or one per row), or refused."""

import pytest
from transformers import logging

from tests.train.model_families import EXACT, FAMILIES, LORA_PRESETS, PAGE, render_share, study, study_lora

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
    assert max(found.merged, found.reloaded) < 1e-6
    assert found.misfits == ()


def test_page_lists_tested_families() -> None:
    assert set(LINES) - {"model type", "---"} == set(FAMILIES)
