"""One rank of `test_two_gpus_equal_one` under torchrun: three policy steps in one layout; rank 0 writes the result.

torchrun --nproc-per-node=2 -m tests.gpu.layout_rank <model> <backend> <out>
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

CHARACTERS = "0123456789+="
NUM_SEQUENCES, NUM_STEPS = 8, 3
LAYOUTS: dict[str, dict[str, Any]] = {
    "fsdp2": {"backend": "fsdp2"},
    "zero-3": {"backend": "deepspeed", "zero_stage": 3},
    "fsdp2, moments on the host": {"backend": "fsdp2", "offload": "optimizer"},
}


def draw_lengths() -> list[tuple[int, int]]:
    """Return (prompt, completion) tokens of each sequence."""
    random = np.random.default_rng(0)
    return [(int(random.integers(2, 30)), int(random.integers(4, 40))) for _ in range(NUM_SEQUENCES)]


def build_sequences(lengths: list[tuple[int, int]]) -> list[Any]:
    from slurm_rl.algorithms.sequences import TrainSequence

    random = np.random.default_rng(1)
    total = sum(completion for _, completion in lengths)
    return [
        TrainSequence(
            token_ids=random.integers(2, len(CHARACTERS) + 2, prompt + completion),
            trained_from=prompt,
            weight=1 / total,
            advantages=np.full(completion, 1.0, np.float32),
            old_logprobs=np.full(completion, -2.0, np.float32),
        )
        for prompt, completion in lengths
    ]


def main(folder: str, backend: str, out: str) -> None:
    import torch

    from slurm_rl.algorithms.policy_loss import build_policy_loss
    from slurm_rl.config.algorithm import AlgorithmConfig
    from slurm_rl.config.model import ModelConfig
    from slurm_rl.config.train import OptimConfig, PolicyConfig
    from slurm_rl.models.distributed import init_process_group, leave_process_group
    from slurm_rl.models.policy import PolicyEngine

    rank, world, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if torch.cuda.is_available():
        torch.cuda.set_device(local)
    init_process_group(rank, world, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout_s=120)
    # With Adam's default eps, rounding of a vanishing gradient would become a step.
    engine = PolicyEngine(
        Path(folder),
        ModelConfig(path=folder, dtype="float32"),
        PolicyConfig(num_workers=world, num_threads=1, **LAYOUTS[backend]),
        OptimConfig(lr=1e-3, eps=1e-6),
        temperature=1.0,
    )
    sequences = build_sequences(draw_lengths())[rank::world]
    rows = [engine.train([sequences], build_policy_loss(AlgorithmConfig(), None), 1e-3) for _ in range(NUM_STEPS)]
    if rank == 0:
        Path(out).write_text(json.dumps([{key: float(row[key]) for key in ("loss", "grad_norm")} for row in rows]))
    leave_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
