"""What the heavy tests share: one uninterrupted run, which others must equal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

OVERRIDES = (
    "data.largest_addend=9",
    "data.num_eval=20",
    "warmup.num_steps=40",
    "warmup.batch_size=64",
    "algorithm.kl.coefficient=0.001",
    "trainer.num_steps=6",
    "trainer.prompts_per_step=8",
    "algorithm.group_size=4",
    "checkpoint.every=2",
    "eval.every=3",
    "logging.wandb.mode=disabled",
)


def start_run(run_dir: Path, *extra: str, verb: str = "submit") -> subprocess.Popen[str]:
    """`python -m slurm_rl` as a user starts it, in a folder of its own."""
    words = [str(run_dir)] if verb == "resume" else [f"run_dir={run_dir}", *OVERRIDES, *extra]
    return subprocess.Popen(
        [sys.executable, "-m", "slurm_rl", verb, *words],
        cwd=run_dir.parent,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def exact_rows(run_dir: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what the clock measured."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    run_dir = tmp_path_factory.mktemp("runs") / "whole"
    process = start_run(run_dir)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return run_dir
