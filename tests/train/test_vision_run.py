"""The shipped vision-language experiment, whole, with nothing changed but by overrides: a tiny model and 64 rows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.jsonl import read_rows
from slurm_rl.run_dir import RunDir
from tests.image_kit import write_rows
from tests.whole_run import exact_rows

# The experiment as it is, on this machine: one process of each kind in place of two nodes, short sequences, and a
# supervised start, since a random model would never write an answer that can be rewarded.
OVERRIDES = (
    "+exp=grpo_mathv60k",
    "model=tiny_qwen2_5_vl",
    "model.max_pixels=12544",
    "cluster.num_nodes=1",
    "cluster.gpus_per_node=0",
    "rollout.colocate=false",
    "rollout.max_tokens=16",
    "rollout.max_num_seqs=32",
    "rollout.dump=true",
    "data.num_eval=4",
    "data.max_prompt_tokens=400",
    "eval.greedy=false",
    "reward.num_workers=1",
    "warmup.num_steps=45",
    "warmup.batch_size=16",
    "warmup.optim.lr=5.0e-3",
    "optim.lr=1.0e-3",
    "trainer.num_steps=3",
    "trainer.prompts_per_step=8",
    "trainer.num_minibatches=1",
    "checkpoint.every=1",
    "checkpoint.keep=3",
    "policy.num_threads=1",
    "ray.dashboard=false",
    "logging.wandb.mode=disabled",
)


def start(run_dir: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "slurm_rl", *words],
        cwd=run_dir.parent,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_rows(root / "mathv60k", num_rows=64)
    return root


@pytest.fixture(scope="module")
def run_dir(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "vision"
    process = start(run_dir, "submit", f"run_dir={run_dir}", *OVERRIDES, f"data.root={root}")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return run_dir


def grpo_rows(run_dir: Path) -> list[dict[str, Any]]:
    return [row for row in exact_rows(run_dir) if row["stage"] == "grpo"]


def test_engine_and_policy_agree_on_images_in_every_step(run_dir: Path) -> None:
    steps = grpo_rows(run_dir)
    assert len(steps) == 3
    assert any(row["reward/groups_with_signal"] > 0 for row in steps), "nothing was rewarded, so nothing was learned"
    assert all(row["policy/grad_norm"] > 0 for row in steps[1:])
    assert max(row["sync/probe_difference"] for row in steps) < 1e-4
    # One optimizer step a batch, so the policy that trains is the one that sampled.
    assert max(row["mismatch/max"] for row in steps) < 1e-4


def test_the_export_is_the_trained_model_with_its_image_processor(run_dir: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoImageProcessor, AutoModelForImageTextToText

    before, after = (load_file(run_dir / name / "model.safetensors") for name in ("model", "export"))
    assert before.keys() == after.keys()
    moved = {name for name in before if (before[name] != after[name]).any()}
    # Under the names of the published checkpoints.
    assert {name.partition(".")[0] for name in moved} == {"visual", "model"}
    _, loaded = AutoModelForImageTextToText.from_pretrained(run_dir / "export", output_loading_info=True)
    assert not loaded["missing_keys"] and not loaded["unexpected_keys"]
    AutoImageProcessor.from_pretrained(run_dir / "export")


def test_prompts_with_several_images_and_with_none_were_trained_on(run_dir: Path) -> None:
    groups = [json.loads(line) for path in (run_dir / "rollouts").iterdir() for line in path.read_text().splitlines()]
    assert {len(group["prompt"]["images"]) for group in groups} == {0, 1, 2}
    assert len(groups) == 3 * 8


def test_gone_on_with_from_the_middle_it_ends_with_the_same_numbers(run_dir: Path, tmp_path: Path) -> None:
    """Images, rewards over HTTP, the reference: equal in every digit that is not a time.

    The run loses what it saved after its first GRPO step, as if its machine had died then; that a kill is no more
    than that is tested with text.
    """
    whole = Path(shutil.copytree(run_dir, tmp_path / "whole"))
    for name in ("checkpoints/step-47", "checkpoints/step-48", "export"):
        shutil.rmtree(run_dir / name)
    (run_dir / "end.json").unlink()
    process = start(run_dir, "resume", str(run_dir))
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    [resumed] = [row for row in read_rows(RunDir(run_dir).events) if row["kind"] == "trainer/resumed"]
    assert resumed["step"] == 46
    assert exact_rows(run_dir) == exact_rows(whole)
    exported = [(folder / "export" / "model.safetensors").read_bytes() for folder in (run_dir, whole)]
    assert exported[0] == exported[1]
