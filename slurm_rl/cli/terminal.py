"""Words of others on the user's terminal: logs, causes, names. What would command the terminal is shown instead."""

from __future__ import annotations

import re

# Escape and its kin, C1, and what turns the direction of writing; not the line feed and the tabulator.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def show_plainly(text: str) -> str:
    r"""The text with its control characters in words; a progress bar's carriage return begins a new line.

    >>> show_plainly("10%\r20%\r\n\x1b]0;title\x07 \x1b[2J")
    '10%\n20%\n\\x1b]0;title\\x07 \\x1b[2J'
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return _COMMANDS.sub(lambda found: ascii(found[0])[1:-1], lines)
