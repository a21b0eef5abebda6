"""Name the rows whose reference answers no completion can score against, before a run meets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from slurm_rl.config.registry import VERIFIERS
from slurm_rl.config.reward import RewardConfig
from slurm_rl.data.lines import shorten
from slurm_rl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from slurm_rl.data.prompts import PromptRow

_TOTAL_S = 60.0
"""Time for the reference answers of one data set; a run counts the rest."""
_NUM_NAMED = 5


def check_references(config: RewardConfig, rows: Sequence[PromptRow], tell: Callable[[str], object]) -> None:
    """Tell which rows will fail in the run, with the number of all of them.

    Raises:
        DataError: all rows would fail.
    """
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
