"""What a row of verbs.py is made of, and what its flags may be given. The standard library alone."""

from __future__ import annotations

import argparse
import contextlib
import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Flag:
    """A flag as argparse's `add_argument` takes it."""

    names: tuple[str, ...]
    options: dict[str, Any]
    not_with: str | None = None
    """Of flags with the same word here, a command line has one."""

    @property
    def takes_value(self) -> bool:
        return "action" not in self.options or self.options["action"] == "append"


def flag(*names: str, not_with: str | None = None, **options: Any) -> Flag:
    return Flag(names, options, not_with)


def switch(*names: str, not_with: str | None = None, **options: Any) -> Flag:
    return Flag(names, {"action": "store_true", **options}, not_with)


@dataclass(frozen=True)
class Verb:
    about: str
    """One line."""
    words: str
    """What may follow, as usage shows it."""
    example: str
    """The words of one command."""
    flags: tuple[Flag, ...] = ()
    details: str = ""
    """More, for --help of this verb."""
    list_details: str | None = None
    """`module:function` that returns still more, imported for --help alone."""
    takes_command: bool = False
    """Whether the words after `--` are a command of the user's."""


def parse_port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 65536):
        raise argparse.ArgumentTypeError(f"must be a port, from 1 to 65535; got {text}")
    return int(text)


def parse_server_port(text: str) -> int:
    return 0 if text == "0" else parse_port(text)


def parse_finite(text: str, above: float = -math.inf, what: str = "a finite number") -> float:
    with contextlib.suppress(ValueError):
        if above < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"must be {what}; got {text}")


def parse_positive(text: str) -> float:
    return parse_finite(text, 0, "a number above 0")
