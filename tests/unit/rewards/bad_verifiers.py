"""Verifiers that misbehave as the completion requests; worker processes import them."""

import ctypes
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

from slurm_rl.errors import DataError


class Unpicklable(Exception):
    """An exception that cannot be rebuilt from its args, as in some libraries."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__("both", one, two)

    def __str__(self) -> str:
        raise RuntimeError("no words either")


def _hang() -> None:
    while True:
        pass


def _hang_without_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _hang()


def _hang_in_c() -> None:
    re.match(r"(a+)+$", "a" * 100 + "b")


def _raise(error: BaseException) -> None:
    raise error


_DEEDS: dict[str, Any] = {
    "hang": _hang,
    "hang without sigterm": _hang_without_sigterm,
    "hang in c": _hang_in_c,
    "exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "sys.exit": lambda: sys.exit(0),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "raise": lambda: _raise(ValueError("cannot read this")),
    "unpicklable": lambda: _raise(Unpicklable("a", "b")),
    "bad gold": lambda: _raise(DataError("the answer must be readable", seen="'x'")),
    "slow": lambda: time.sleep(0.15),
    "pid": lambda: float(f"0.{os.getpid()}1"),
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "none": lambda: None,
    "text": lambda: "1.0",
    "two": lambda: 2.0,
    "minus": lambda: -0.5,
    "true": lambda: True,
}


def _die_once(marker: Path) -> float:
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 0.75


def obey(completion: str, answer: str) -> Any:
    """Misbehave as the completion requests; else return answer / 1000, which identifies the item."""
    if completion == "die once":
        return _die_once(Path(answer))
    if completion in _DEEDS:
        result = _DEEDS[completion]()
        return result if completion not in ("slow",) else 0.25
    return int(answer) / 1000
