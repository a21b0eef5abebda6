"""Find reference answers that a verifier cannot judge by (`#### 72`, a sentence): their rows would fail in every step.

`prepare` leaves such rows out, and `plan` names them. The verifier runs in another process, which can be killed:
sympy can take forever over a few characters, also inside C.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import get_context
from typing import TYPE_CHECKING

from slurm_rl.config.registry import VERIFIERS
from slurm_rl.config.reward import RewardConfig
from slurm_rl.config.user_files.load import load_function, require_library
from slurm_rl.data.lines import shorten
from slurm_rl.errors import ConfigError, DataError
from slurm_rl.run_dir.meter import measure

if TYPE_CHECKING:
    from pebble import ProcessPool

    from slurm_rl.data.prompts import PromptRow

TIMEOUT_S = 10.0
_START_TIMEOUT_S = 120.0
"""Includes the import of sympy from a cold network disk."""
_TOTAL_S = 60.0
"""Time for the reference answers of one data set at submission; a run counts the rest."""
_NUM_NAMED = 5
MATH = "slurm_rl.rewards.math_answer:check_reference"


def check_references(config: RewardConfig, rows: Sequence[PromptRow], tell: Callable[[str], object]) -> None:
    """Warn of rows that will fail in the run. Raises DataError if all would."""
    if config.function or config.model.path or config.url or (config.judge.is_on and config.judge.weight is None):
        return
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


def find_unscorable(
    answers: Iterable[str], check: str = MATH, *, timeout_s: float = TIMEOUT_S, total_s: float = math.inf
) -> dict[str, str]:
    """Return the error of each answer that no completion can score against; each is tried once.

    Args:
        check: `module:function` that raises for such an answer.
        total_s: limit for all; answers not reached by then count as right.
    """
    if check == MATH:
        require_library("math_verify", "checking reference answers needs math-verify")
    require_library("pebble", "checking reference answers needs Pebble")
    from pebble import ProcessPool

    unique = list(dict.fromkeys(answers))
    verdicts = {}
    give_up = time.monotonic() + total_s
    # One process; pebble starts another after each answer that was late or that killed it.
    with ProcessPool(max_workers=1, initializer=_choose, initargs=(check,), context=get_context("spawn")) as pool:
        try:
            with measure("checking answers", len(unique), unit="answers") as advance:
                for answer in unique:
                    if time.monotonic() > give_up:
                        break
                    verdicts[answer] = _ask(pool, answer, timeout_s)
                    advance(1)
        finally:
            pool.stop()
    return {answer: verdict for answer, verdict in verdicts.items() if verdict}


def _ask(pool: ProcessPool, answer: str, timeout_s: float) -> str:
    """Return the error of the answer, or ""."""
    from pebble import ProcessExpired

    future = pool.schedule(_run_check, args=(answer,), timeout=timeout_s)
    try:
        return str(future.result(_START_TIMEOUT_S + timeout_s))
    except ProcessExpired:
        return "the verifier died of it"
    except TimeoutError:
        if future.done():
            return f"no verdict within {timeout_s:g} s"
        raise ConfigError(
            f"the verifier's process must start within {_START_TIMEOUT_S:g} s",
            seen="it did not",
            action="check its output above",
        ) from None


_chosen: list[Callable[[str], object]] = []


def _choose(check: str) -> None:
    _chosen.append(load_function(check))


def _run_check(answer: str) -> str:
    (check,) = _chosen
    try:
        check(answer)
    except Exception as error:  # sympy raises any error
        return f"{type(error).__name__}: {str(error)[:80]}"
    return ""
