"""A check that misbehaves on demand; a separate module, so that new processes can import it."""

import itertools
import os


def judge_oddly(answer: str) -> None:
    if answer == "hangs in C":
        max(itertools.count())
    if answer == "dies":
        os._exit(1)
    if answer == "raises":
        raise RecursionError("deep")
