r"""The `math` verifier: compare the LaTeX answer of a completion with the reference, mathematically.

The answer is the last \boxed{} (or \fbox{}) after the reasoning; boxes that `,`, `and` or `or` join are one answer.
Without a box it is the last formula. An unclosed box or formula is no answer, and no earlier one counts.

math-verify compares. Differences from its defaults, each with a row in tests/unit/rewards/test_math_answer.py: only
LaTeX counts, so `42` outside of a formula is no answer; the last box decides, where math-verify joins near ones to a
set; 5=6 is not 6; 1\,000 and 10 000 are numbers, not products; x<3 equals (-\infty,3); 0.\overline{3}, 1.5e3, \fbox
and percent signs are read; words equal words. 50\% equals 50 and 0.5, but not 0.5\%.

math_verify's own SIGALRM timeout is off, because the reward pool has a deadline that also ends a hang inside C code.
"""

import logging
import re
from functools import lru_cache
from typing import Any, NamedTuple

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Eq, Expr, Set
from sympy.logic.boolalg import Boolean

from slurm_rl.errors import DataError
from slurm_rl.rewards.extract import drop_reasoning, find_boxes, has_box

# Otherwise every worker prints that the timeout is off.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_DELIMITER = re.compile(r"(?<!\\)\$|\\\(|\\\[")
"""Start of a formula: $ (not the dollar sign \\$), \\( or \\[."""
_LATEX = [LatexExtractionConfig(boxed_match_priority=0)]
"""LaTeX only; \\boxed{} has priority."""


class _Answer(NamedTuple):
    words: str
    """The text without markup, for answers in words."""
    values: list[Any]
    """Expressions of sympy; empty if there is none that parses."""
    is_percent: bool


def score_math(completion: str, answer: str) -> float:
    r"""Return 1.0 if the answer of the completion equals `answer` (LaTeX or words), else 0.0.

    Raises:
        DataError: the answer cannot be parsed.
        Exception: sympy could not compare the two; the pool counts it as a failure.
    """
    return float(_is_equal(_read_reference(answer), _read_text(drop_reasoning(completion))))


def check_reference(answer: str) -> None:
    """Raise DataError if no completion can score against this answer."""
    reference = _read_reference(answer)
    if reference.values and not verify(reference.values, reference.values, timeout_seconds=None, raise_on_error=True):
        raise _bad_reference(answer)


@lru_cache(maxsize=1024)
def _read_reference(answer: str) -> _Answer:
    """Parse a reference; cached, because all completions of a group share it."""
    if has_box(answer) or _DELIMITER.search(answer):
        reference = _read_text(answer)
    elif _is_prose(answer):
        raise _bad_reference(answer)
    else:
        reference = _read(answer)
    if not (reference.values or re.fullmatch(r"[^\W\d_]{2,}", reference.words)):
        raise _bad_reference(answer)
    return reference


def _bad_reference(answer: str) -> DataError:
    return DataError(
        "the math verifier needs a reference answer that is LaTeX",
        seen=repr(answer),
        action=r"correct the row: the answer only, such as $60$, $\frac{1}{2}$ or \boxed{60}",
    )


def _is_prose(answer: str) -> bool:
    """Return whether it is a sentence around a number, such as `The answer is 42`."""
    bare = re.sub(r"\\[A-Za-z]+\s*(?:\{[^{}]*\})?", " ", answer)
    return len(re.findall(r"[A-Za-z]{2,}", bare)) >= 3 and re.search(r"\d", bare) is not None


def _is_equal(gold: _Answer, seen: _Answer) -> bool:
    if gold.words and gold.words == seen.words:
        return True
    golds, values = gold.values, seen.values
    if gold.is_percent != seen.is_percent:
        golds, values = (_with_percent(golds), values) if gold.is_percent else (golds, _with_percent(values))
    values = [value for value in values if not _is_false(value)]
    if verify(golds, values, timeout_seconds=None, raise_on_error=True):
        return True
    pairs = [(one, other) for one in golds for other in values if isinstance(one, Set) != isinstance(other, Set)]
    return any(_as_set(one) == _as_set(other) for one, other in pairs)


def _with_percent(values: list[Any]) -> list[Any]:
    return [*values, *(value / 100 for value in values if isinstance(value, Expr))]


def _is_false(value: Any) -> bool:
    """Return whether it is an equation between unequal numbers; `verify` would compare only its right side."""
    return isinstance(value, Eq) and not value.free_symbols and not verify(value.lhs, value.rhs, timeout_seconds=None)


def _as_set(value: Any) -> Any:
    """Return the numbers for which an inequality holds; None if that is no set of numbers."""
    if isinstance(value, Set):
        return value
    if not isinstance(value, Boolean) or isinstance(value, Eq):
        return None
    try:
        return value.as_set()
    except (NotImplementedError, TypeError, ValueError, AttributeError):  # of several unknowns, for example
        return None


def _read_text(text: str) -> _Answer:
    """Read the answer in a text: its last boxes, or else its last formula."""
    if has_box(text):
        boxes = list(dict.fromkeys(find_boxes(text)))
        return _read(", ".join(boxes)) if boxes else _Answer("", [], is_percent=False)
    if _OPEN_FORMULA.search(text):
        return _Answer("", [], is_percent=False)
    plain, num_percents = _PERCENT_IN_FORMULA.subn(r"\1", text)
    return _Answer("", _parse(_normalize(plain)), is_percent=num_percents > 0)


def _read(latex: str) -> _Answer:
    latex = re.sub(r"^[\s*$]+|(?:(?<!\\)\$|[\s*.,;])+$", "", latex)
    plain = _PERCENT.sub("", latex)
    words = re.sub(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\b|\\[ ,;:!]|[\s{}$]", "", latex).casefold()
    return _Answer(words, _parse(rf"\boxed{{{_normalize(plain)}}}"), is_percent=plain != latex)


_PERCENT = re.compile(r"\s*(?:\\?%|(?:\\text\s*\{\s*)?(?:percent|\\?%)\s*\}?)\s*$", re.IGNORECASE)
_PERCENT_IN_FORMULA = re.compile(r"\\%\s*(\.?(?:\$\$?|\\\)|\\\])[^$\\]*)$")
_OPEN_FORMULA = re.compile(
    r"\\\((?!.*\\\))|\\\[(?!.*\\\])|\A(?:[^$]*(?<!\\)\$[^$]*(?<!\\)\$)*[^$]*(?<!\\)\$(?!\d)[^$]*\Z", re.DOTALL
)
"""A formula that never ends, so the completion was cut in it; `$5` is an amount of dollars."""

_NUMBER_IN_TEXT = re.compile(r"\\(?:text|mathrm|mbox)\s*\{\s*(-?\d[\d.,\s]*)\}")
_SEPARATED = re.compile(r"(?<![\d.^_])\d{1,3}(?:(?:\\[,;:! ]|\{,\}|~|[ \u00a0\u202f])\d{3})+(?!\d)")
_REPEATING = re.compile(r"(?<!\d)(\d*)\.(\d*)\\(?:overline|bar)\s*\{?(\d+)\}?")
_SCIENTIFIC = re.compile(r"(\d)[eE]([+-]?\d+)\b")


def _normalize(latex: str) -> str:
    """Rewrite notation that math-verify misreads."""
    latex = _NUMBER_IN_TEXT.sub(r"\1", latex).replace(r"\varnothing", r"\emptyset")
    latex = _SEPARATED.sub(lambda found: re.sub(r"\D", "", found[0]), latex)
    latex = _REPEATING.sub(_write_fraction, latex)
    return _SCIENTIFIC.sub(r"\1 \\times 10^{\2}", latex)


def _write_fraction(found: re.Match[str]) -> str:
    whole, fixed, period = found.groups()
    numerator = int(whole + fixed + period) - int(whole + fixed or "0")
    return rf"\frac{{{numerator}}}{{{'9' * len(period)}{'0' * len(fixed)}}}"


def _parse(text: str) -> list[Any]:
    """Return the expressions in `text`; empty if the final formula does not parse: earlier ones may be revoked."""
    parsed: list[Any] = parse(
        text,
        extraction_config=_LATEX,
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return parsed
