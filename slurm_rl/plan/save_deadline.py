"""Time by which an external trainer must have saved, and the arguments that tell it. Pure, standard library only.

Slurm may send the stop signal up to a minute early, so a trainer must have saved a minute before `checkpoint_lead_s`.
"""

import re
from typing import Final

_EARLY_S = 60.0
_ASKED = re.compile(r"\$\{limit:([^}]*)\}")
_FIELD = re.compile(r"timestamp|left(,\d+)?")
FORMS: Final = "${limit:timestamp}, ${limit:left} or ${limit:left,<seconds>}"


def save_by(ends_at: float, lead_s: float) -> float:
    """Return the deadline in seconds since 1970 for a job that ends at `ends_at`."""
    return ends_at - lead_s - _EARLY_S


def find_limit_fields(word: str) -> list[str]:
    """
    >>> find_limit_fields("a=${limit:left,600}")
    ['left,600']
    """
    return _ASKED.findall(word)


def is_limit_field(field: str) -> bool:
    """Return whether `${limit:<field>}` has a value."""
    return _FIELD.fullmatch(field) is not None


def fill_limit(words: tuple[str, ...], deadline: float, now: float) -> tuple[str, ...]:
    """Return the words with the deadline in seconds since 1970, or the time until then as DD:HH:MM:SS.

    >>> fill_limit(("t=${limit:timestamp}", "l=${limit:left}", "l=${limit:left,600}"), 100_000.0, 3_400.5)
    ('t=100000', 'l=01:02:49:59', 'l=01:02:39:59')
    """

    def value_of(match: re.Match[str]) -> str:
        name, _, reserve = match[1].partition(",")
        if name == "timestamp":
            return str(int(deadline))
        minutes, seconds = divmod(max(0, int(deadline - now - int(reserve or 0))), 60)
        return f"{minutes // 1440:02}:{minutes // 60 % 24:02}:{minutes % 60:02}:{seconds:02}"

    return tuple(_ASKED.sub(value_of, word) for word in words)
