"""Whole GRPO runs of vision-language models with adapters, also on the vision tower."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from tests.examples.kit import HERE, ROOT
from tests.whole_run import exact_rows

SIZES = ("model.dtype=float32", "warmup.num_steps=20", "trainer.num_steps=2", "+lora=all_linear", "model.lora.rank=4")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_grpo_with_adapters_trains_and_exports_a_vision_model(tmp_path: Path, family: str) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForImageTextToText

    (tmp_path / "examples").symlink_to(ROOT / "examples")
    words = ["+exp=images_tiny", "run_dir=run", f"model.tiny_vl.family={family}", *SIZES, *HERE]
    for command in (["examples/images/make_data.py"], ["-m", "slurm_rl", "--config-dir", "examples/images", *words]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=800,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "run"
    steps = [row for row in exact_rows(run) if row["stage"] == "grpo"]
    assert len(steps) == 2
    assert max(row["sync/probe_difference"] for row in steps) < 1e-4
    assert max(row["mismatch/max"] for row in steps) < 1e-4
    [event] = [row for row in read_rows(RunDir(run).events) if row["kind"] == "trainer/adapters"]
    assert 0.5 < event["share"] < 1 and event["without"] == ["patch_embed.proj"]

    before, after = (load_file(run / name / "model.safetensors") for name in ("model", "export"))
    assert before.keys() == after.keys()
    moved = {name for name in before if (before[name] != after[name]).any()}
    assert {name for name in moved if "visual" in name} and {name for name in moved if "layers.0.mlp" in name}
    _, loaded = AutoModelForImageTextToText.from_pretrained(run / "export", output_loading_info=True)
    assert not loaded["missing_keys"] and not loaded["unexpected_keys"]
