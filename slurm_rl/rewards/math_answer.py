"""The `math` verifier: is the LaTeX answer of a completion equal to the reference, as mathematics?

math_verify bounds its own time with SIGALRM; that is switched off here, because the reward pool
has the deadline, and one that also ends a hang inside C code.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

from slurm_rl.errors import DataError

# Else every worker process prints that the time-out is off, which is on purpose.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_DELIMITER = re.compile(r"(?<!\\)\$|\\\(|\\\[")
"""What opens mathematics: $ (not the dollar sign \\$), \\( or \\[."""
_LATEX = [LatexExtractionConfig(boxed_match_priority=0)]
"""LaTeX only, and what stands in a \\boxed{} before anything else."""


def score_math(completion: str, answer: str) -> float:
    r"""1.0 when the boxed (or else the last) formula of the completion equals `answer`; else 0.0.

    Args:
        completion: text with LaTeX in it, such as `so it is \boxed{60}`; without any it scores 0.0.
        answer: LaTeX, with or without `$` around it.

    Raises:
        DataError: the answer cannot be parsed, so no completion could be judged by it.
        Exception: sympy could not compare the two; the pool counts it as a failure.
    """
    return float(verify(_parse_gold(answer), _parse(completion), timeout_seconds=None, raise_on_error=True))


@lru_cache(maxsize=1024)
def _parse_gold(answer: str) -> list[Any]:
    """Parse a reference; cached, since all completions of a group share it."""
    text = answer if _DELIMITER.search(answer) else f"${answer}$"
    parsed = _parse(text)
    if not parsed:
        raise DataError(
            "the math verifier needs a reference answer that is LaTeX",
            seen=repr(answer),
            action=r"correct the row: write it as $60$, $\frac{1}{2}$ or $\boxed{60}$",
        )
    return parsed


def _parse(text: str) -> list[Any]:
    """Return the expressions in `text`; empty when there is none that parses.

    When the final formula does not parse, earlier ones do not count: they may have been revoked.
    """
    parsed: list[Any] = parse(
        text,
        extraction_config=_LATEX,
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return parsed
