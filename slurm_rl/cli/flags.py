"""Types of the rows in verbs.py, and parsers of flag values. Standard library only."""

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
    """Group of which a command line has at most one flag."""
    needs: str | None = None
    """Name of the flag without which this one has no effect, and is refused."""

    @property
    def dest(self) -> str:
        """Name of its attribute in the parsed flags."""
        name = next((name for name in self.names if name.startswith("--")), self.names[0])
        return str(self.options.get("dest", name.lstrip("-").replace("-", "_")))

    def is_given(self, flags: argparse.Namespace) -> bool:
        """Return whether the parsed value differs from the default."""
        default = False if self.options.get("action") == "store_true" else None
        return bool(getattr(flags, self.dest) != self.options.get("default", default))

    @property
    def takes_value(self) -> bool:
        return "action" not in self.options or self.options["action"] == "append"


def flag(*names: str, not_with: str | None = None, needs: str | None = None, **options: Any) -> Flag:
    return Flag(names, options, not_with, needs)


def switch(*names: str, not_with: str | None = None, needs: str | None = None, **options: Any) -> Flag:
    return Flag(names, {"action": "store_true", **options}, not_with, needs)


@dataclass(frozen=True)
class Verb:
    about: str
    """One line."""
    words: str
    """Arguments, as usage shows them."""
    example: str
    """Arguments of an example."""
    flags: tuple[Flag, ...] = ()
    details: str = ""
    """Details for --help of this verb."""
    list_details: str | None = None
    """`module:function` that returns more details; imported only for --help."""
    takes_command: bool = False
    """Whether the words after `--` are a command."""


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
