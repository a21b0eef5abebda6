"""The demo on GPUs. On one that both share vLLM sleeps while the policy trains, and holds its weights after."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.whole_run import OVERRIDES, exact_rows

WORDS = (
    "cluster.accelerator=nvidia",
    "rollout.gpu_memory_utilization=0.3",
    "model.dtype=bfloat16",
)


# GPUs, and what is said of them: who shares them, how weights travel, what waits in host memory.
WAYS = {
    "colocated": (1, ["rollout.colocate=true"]),
    "colocated, weights by handle": (1, ["rollout.colocate=true", "rollout.weight_transfer=ipc"]),
    "colocated, adapters": (1, ["rollout.colocate=true", "+lora=all_linear"]),
    "colocated, offloaded": (1, ["rollout.colocate=true", "policy.offload=all"]),
    "apart, weights by broadcast": (2, ["rollout.weight_transfer=nccl"]),
    "apart, tensor parallel": (3, ["policy.num_workers=1", "rollout.tensor_parallel_size=2"]),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_demo_runs_on_gpus_and_engine_and_policy_agree(way: str, tmp_path: Path) -> None:
    import torch

    num_gpus, how = WAYS[way]
    if torch.cuda.device_count() < num_gpus:
        pytest.skip(f"needs {num_gpus} GPUs")
    run = tmp_path / "run"
    words = [sys.executable, "-m", "slurm_rl", f"run_dir={run}", *OVERRIDES, *gpu_words()]
    words += [f"cluster.gpus_per_node={num_gpus}", *how]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((run / "end.json").read_text())["state"] == "finished"
    steps = [row for row in exact_rows(run) if row["stage"] == "grpo"]
    assert len(steps) == 6
    print(f"\nmismatch/mean {max(row['mismatch/mean'] for row in steps):.4f}")


def gpu_words() -> list[str]:
    import torch

    vendor = "amd" if torch.version.hip else "nvidia"
    return [word.replace("=nvidia", f"={vendor}") for word in WORDS]
