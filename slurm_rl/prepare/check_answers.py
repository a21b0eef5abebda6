"""Asks the `math` verifier of every reference answer whether it could judge anything by it.

Some cannot be parsed (`10\\%`, `0.\\overline{3}`), and a run ends at the first such row it meets, since scoring it 0
or 1 would both be wrong. So these rows are left out when the data set is made, and named.

The verifier runs in another process: sympy can take forever over a few characters, also inside C, and only a
process can be ended then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from multiprocessing import get_context
from typing import TYPE_CHECKING

from slurm_rl.errors import ConfigError
from slurm_rl.meter import measure
from slurm_rl.prepare import require_library

if TYPE_CHECKING:
    from pebble import ProcessPool

TIMEOUT_S = 10.0
"""Deadline of one answer."""
_START_TIMEOUT_S = 120.0
"""Importing sympy from a cold network disk takes its time."""
Judge = Callable[[str, str], float]


def find_unscorable(
    answers: Iterable[str], say: Callable[[str], None], *, timeout_s: float = TIMEOUT_S, judge: Judge | None = None
) -> dict[str, str]:
    """What is wrong with each answer that does not even score against itself; each is tried once.

    Args:
        judge: (completion, answer) -> 1.0 when they are equal; the `math` verifier by default.

    Raises:
        ConfigError: math-verify is not installed.
    """
    if judge is None:
        require_library("math_verify", "checking reference answers needs math-verify")
    require_library("pebble", "checking reference answers needs Pebble")
    from pebble import ProcessPool

    unique = list(dict.fromkeys(answers))
    say(f"checking {len(unique)} different reference answers")
    # One process; pebble starts another after each answer that was late or that killed it.
    with ProcessPool(max_workers=1, initializer=_choose, initargs=(judge,), context=get_context("spawn")) as pool:
        try:
            with measure("checking answers", len(unique), unit="answers") as advance:
                verdicts = {}
                for answer in unique:
                    verdicts[answer] = _ask(pool, answer, timeout_s)
                    advance(1)
        finally:
            pool.stop()
    return {answer: verdict for answer, verdict in verdicts.items() if verdict}


def _ask(pool: ProcessPool, answer: str, timeout_s: float) -> str:
    """What is wrong with the answer, or ""."""
    from pebble import ProcessExpired

    future = pool.schedule(_compare, args=(answer,), timeout=timeout_s)
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
            action="look at what it printed above",
        ) from None


_chosen: list[Judge] = []
"""In the process alone: who judges there."""


def _choose(judge: Judge | None) -> None:
    if judge is None:
        from slurm_rl.rewards.math_answer import score_math

        judge = score_math
    _chosen.append(judge)


def _compare(answer: str) -> str:
    (judge,) = _chosen
    try:
        return "" if judge(answer, answer) == 1.0 else "it does not equal itself"
    except Exception as error:  # sympy raises what it likes
        return f"{type(error).__name__}: {str(error)[:80]}"
