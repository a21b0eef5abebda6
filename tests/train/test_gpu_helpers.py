"""Run the helpers of tests/gpu on CPU, so that on a GPU machine only the GPUs are untested."""

from pathlib import Path

import pytest

from benchmarks.trainer_throughput import SHAPES, build_model
from tests.gpu.cases import CASES, device_overrides, fill
from tests.gpu.layout_rank import CHARACTERS
from tests.gpu.memory_step import measure
from tests.gpu.models import name_all_tokens
from tests.tiny_models import TinyModel, build_character_tokenizer


def test_random_model_samples_text(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    build_character_tokenizer(TinyModel(characters=CHARACTERS)).save_pretrained(tmp_path)
    name_all_tokens(tmp_path / "tokenizer.json", 1000)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == 1000
    assert tokenizer.encode("3+4=") == [5, 12, 6, 13]
    assert tokenizer.decode([5, 12, 999]) == "3+<999>"


@pytest.mark.slow
def test_measured_step_equals_planned_step(tmp_path: Path) -> None:
    build_model(SHAPES["tiny"], 256, tmp_path)
    words = fill(CASES["grpo, colocated"].words, model=tmp_path, rows=tmp_path, folder=tmp_path)
    found = measure([*device_overrides("nvidia", 1, 80), *words, "policy.micro_batch_tokens=512"])
    assert found["tokens"] == 512 and found["planned_gb"] > 3
