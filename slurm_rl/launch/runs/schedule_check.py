"""Warn of a warmup that is as long as its run, and of reference answers that no completion can score against."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from slurm_rl.algorithms.schedule import count_steps
from slurm_rl.config.registry import VERIFIERS
from slurm_rl.config.reward import RewardConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.config.train import OptimConfig
from slurm_rl.data.lines import shorten
from slurm_rl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from slurm_rl.data.prompts import PromptRow

_TOTAL_S = 60.0
"""Time for the reference answers of one data set; a run counts the rest."""
_NUM_NAMED = 5


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


def check_references(config: RewardConfig, rows: Sequence[PromptRow], tell: Callable[[str], object]) -> None:
    """Warn of rows that will fail in the run. Raises DataError if all would."""
    if config.function is not None or config.model.path is not None or config.url is not None:
        return
    from slurm_rl.rewards.check_references import find_unscorable

    for name in config.verifiers:
        check = VERIFIERS[name].check
        if check is None:
            continue
        try:
            found = find_unscorable((row.answer for row in rows), check, total_s=_TOTAL_S)
        except ConfigError as error:
            tell(f"warning: the run, not this command, checks the reference answers: {error}")
            return
        bad = [row for row in rows if row.answer in found]
        if not bad:
            continue
        named = "; ".join(f"{row.name}: {shorten(row.answer, 60)!r}" for row in bad[:_NUM_NAMED])
        seen = f"{len(bad)} of {len(rows)}: {named}{'; ...' if len(bad) > _NUM_NAMED else ''}"
        rule = f"the {name} verifier must be able to score against the reference answers"
        why = found[bad[0].answer].partition("; got")[0]
        if len(bad) == len(rows):
            raise DataError(rule, seen=seen, action=f"correct the data, or choose another reward ({why})")
        tell(f"{rule}; it cannot for {seen} ({why}). In the run such rows fail (metric reward/failed_reference)")
