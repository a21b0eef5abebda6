"""A check that misbehaves on demand; in a module of its own, which a new process can import."""

import itertools
import os


def judge_oddly(answer: str) -> None:
    if answer == "hangs in C":
        max(itertools.count())
    if answer == "dies":
        os._exit(1)
    if answer == "raises":
        raise RecursionError("deep")
