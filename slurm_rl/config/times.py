"""Slurm's language of time limits."""

from __future__ import annotations

import re

_FORMS = {
    r"(?P<m>\d+)": "minutes",
    r"(?P<m>\d+):(?P<s>\d+)": "MM:SS",
    r"(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)": "HH:MM:SS",
    r"(?P<d>\d+)-(?P<h>\d+)": "D-HH",
    r"(?P<d>\d+)-(?P<h>\d+):(?P<m>\d+)": "D-HH:MM",
    r"(?P<d>\d+)-(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)": "D-HH:MM:SS",
}


def parse_minutes(value: str | int) -> int:
    """Minutes of a Slurm time limit, seconds rounded up as Slurm does.

    >>> parse_minutes("1-02:00:00"), parse_minutes("10:30"), parse_minutes(45)
    (1560, 11, 45)
    """
    text = str(value).strip()
    for pattern in _FORMS:
        match = re.fullmatch(pattern, text)
        if match:
            parts = {key: int(number) for key, number in match.groupdict().items()}
            seconds = parts.get("d", 0) * 86400 + parts.get("h", 0) * 3600 + parts.get("m", 0) * 60 + parts.get("s", 0)
            if seconds > 0:
                return -(-seconds // 60)
    raise ValueError(f"a time limit is one of {', '.join(_FORMS.values())} and above 0; got {text!r}")
