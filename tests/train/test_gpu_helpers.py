"""Run the helpers of tests/gpu on CPU, so that on a GPU machine only the GPUs are untested."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.trainer_throughput import SHAPES, build_model
from tests.gpu.cases import CASES, device_overrides, fill
from tests.gpu.conftest import skip_reason
from tests.gpu.layout_rank import CHARACTERS
from tests.gpu.models import name_all_tokens
from tests.tiny_models import TinyModel, build_character_tokenizer

ROOT = Path(__file__).parents[2]


def test_gpu_tests_are_skipped_with_reason() -> None:
    reason = skip_reason()
    if reason is None:
        pytest.skip("there are GPUs here, and an environment for them")
    argv = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests/gpu"]
    done = subprocess.run(argv, cwd=ROOT, env={**os.environ, "COLUMNS": "300"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    last = done.stdout.splitlines()[-1]
    assert "skipped" in last and "passed" not in last and "error" not in last
    assert reason in done.stdout


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
    words = [*device_overrides("nvidia", 1, 80), *words, "policy.micro_batch_tokens=512"]
    argv = [sys.executable, "-m", "tests.gpu.memory_step", json.dumps(words)]
    done = subprocess.run(argv, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tokens"] == 512 and found["planned_gb"] > 3
