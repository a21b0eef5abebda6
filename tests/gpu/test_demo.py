"""The demo with policy and engine on one GPU: vLLM sleeps while the policy trains, and holds its weights after."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.whole_run import OVERRIDES, exact_rows

WORDS = (
    "cluster.accelerator=nvidia",
    "cluster.gpus_per_node=1",
    "rollout.colocate=true",
    "rollout.gpu_memory_utilization=0.3",
    "model.dtype=bfloat16",
    # bfloat16 keeps 8 bits; the two programs round in different places.
    "rollout.probe_tolerance=0.1",
)


def test_the_demo_runs_on_a_gpu_and_engine_and_policy_agree(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [sys.executable, "-m", "slurm_rl", f"run_dir={run}", *OVERRIDES, *gpu_words()]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((run / "end.json").read_text())["state"] == "finished"
    steps = [row for row in exact_rows(run) if row["stage"] == "grpo"]
    assert len(steps) == 6
    assert max(row["sync/probe_difference"] for row in steps) < 0.1
    print(f"\nmismatch/mean {max(row['mismatch/mean'] for row in steps):.4f}")


def gpu_words() -> list[str]:
    import torch

    vendor = "amd" if torch.version.hip else "nvidia"
    return [word.replace("=nvidia", f"={vendor}") for word in WORDS]
