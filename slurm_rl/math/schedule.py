"""The learning rate over the steps. Without torch: the driver asks for it, and imports little."""

from __future__ import annotations

import math

from slurm_rl.config.train import OptimConfig


def schedule_lr(config: OptimConfig, step: int, num_steps: int) -> float:
    """Learning rate of step 0..num_steps-1.

    With 2 steps of warm-up out of 6 and a linear schedule, in units of `config.lr`:
    0.5, 1, 1, 0.75, 0.5, 0.25: no step is wasted at 0, which is reached as the last one ends.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    remaining = max(num_steps - step, 0) / max(num_steps - config.warmup_steps, 1)
    match config.schedule:
        case "constant":
            return config.lr
        case "linear":
            return config.lr * remaining
        case "cosine":
            return config.lr * 0.5 * (1.0 - math.cos(math.pi * remaining))
