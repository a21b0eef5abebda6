"""Warn of a learning-rate warmup that is as long as its run."""

from collections.abc import Iterator

from slurm_rl.algorithms.schedule import count_steps
from slurm_rl.config.run import RunConfig
from slurm_rl.config.train import OptimConfig


def find_long_warmups(config: RunConfig, num_rows: int | None = None) -> Iterator[str]:
    """Yield a warning for each schedule with a warmup of at least as many steps (`num_rows`: supervised)."""
    for key, optim, steps_key, num_steps in _list_schedules(config, num_rows):
        if optim.warmup_steps >= num_steps:
            share = num_steps / optim.warmup_steps
            yield (
                f"warning: {key}.warmup_steps should be less than the steps of its schedule, or the learning rate only "
                f"rises, to {share:.0%} of {key}.lr; got {optim.warmup_steps} and {steps_key}={num_steps}. "
                f"Next: lower {key}.warmup_steps"
            )


def _list_schedules(config: RunConfig, num_rows: int | None) -> Iterator[tuple[str, OptimConfig, str, int]]:
    """Yield (key of the optimizer, optimizer, source of its number of steps, steps)."""
    if num_rows is not None:
        yield "optim", config.optim, "steps of the rows", count_steps(config.supervised, num_rows)
        return
    num_steps, critic = config.trainer.num_steps, config.critic
    if config.warmup.num_steps:
        yield "warmup.optim", config.warmup.optim, "warmup.num_steps", config.warmup.num_steps
    if not config.algorithm.needs_values:
        yield "optim", config.optim, "trainer.num_steps", num_steps
        return
    # The policy's schedule begins after the critic's own steps.
    yield "optim", config.optim, "trainer.num_steps - critic.warmup_steps", num_steps - critic.warmup_steps
    yield "critic.optim", critic.optim, "trainer.num_steps", num_steps
