"""Learning rate and seeds as pure functions of the step.

A random number follows from the run's seed and its place, not from the history of a generator, so no random state has
to be saved.
"""

import hashlib
import math

from slurm_rl.config.supervised import SupervisedConfig
from slurm_rl.config.train import OptimConfig


def derive_seed(*place: int | str) -> int:
    """Return a seed in 0 .. 2^63 - 1 for a place such as (run seed, "rollout", step, engine)."""
    digest = hashlib.sha256(":".join(map(str, place)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def count_steps(config: SupervisedConfig, num_rows: int) -> int:
    """Return the optimizer steps of a supervised run: `num_epochs` passes, or `max_steps` if that is fewer.

    >>> count_steps(SupervisedConfig(), 300)
    2
    """
    steps = num_rows * config.num_epochs // config.batch_size
    return steps if config.max_steps is None else min(steps, config.max_steps)


def schedule_lr(config: OptimConfig, step: int, num_steps: int) -> float:
    """Return the learning rate of step 0..num_steps-1.

    With 2 warm-up steps of 6 and a linear schedule, in units of `config.lr`: 0.5, 1, 1, 0.75, 0.5, 0.25.
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
