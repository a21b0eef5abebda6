"""A Python that starts and lacks what is asked of it: by its own last words. Standard library alone."""

from __future__ import annotations

import re
from pathlib import Path

from slurm_rl.errors import BringUpError

_NO_MODULE = re.compile(r"ModuleNotFoundError|ImportError")


def find_lack(python: str, words: str) -> BringUpError | None:
    """The error that these last words of a process tell; None when they tell of something else."""
    if not _NO_MODULE.search(words):
        return None
    action = "install slurm_rl there, or set cluster.python to an environment that has it"
    return BringUpError(f"{python} must have what slurm_rl needs", seen=words, action=action)


def find_lack_in(python: str, log: Path) -> BringUpError | None:
    """The same of the last line of a log."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    return find_lack(python, text.rstrip().rpartition("\n")[2])
