"""Export a run to other systems. Pure: config in, text out."""

import re

from slurm_rl.errors import ConfigError

_LENGTHS = {"dstack": (2, 41), "xpk": (1, 39)}
"""Minimum and maximum length of a name."""


def workload_name(name: str, launcher: str) -> str:
    """Return a name of lower case letters, digits and dashes that begins with a letter and ends without a dash.

    >>> workload_name("GRPO mathv60k", "dstack")
    'grpo-mathv60k'

    Raises:
        ConfigError: the result is too short, too long, or begins with a digit.
    """
    shortest, longest = _LENGTHS[launcher]
    found = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not (found[:1].isalpha() and shortest <= len(found) <= longest):
        raise ConfigError(
            f"{launcher} requires a name of {shortest} to {longest} letters, digits and dashes, the first a letter",
            seen=name,
            action="set name=...",
        )
    return found
