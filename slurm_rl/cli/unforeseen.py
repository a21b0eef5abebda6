"""Exceptions that are none of ours: the user gets a sentence, a traceback goes to a file."""

from __future__ import annotations

import tempfile
import traceback
from pathlib import Path

from slurm_rl.disk import explain_refusal

_SHOWN = 80


def explain(error: Exception) -> str:
    """What to tell the user; of an error that is not the operating system's own, where its traceback is kept."""
    if refusal := explain_refusal(error, Path()):
        return refusal
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"this machine refuses: {error.strerror}; got {_shorten(str(error.filename))}"
    return keep_traceback(error)


def keep_traceback(error: Exception) -> str:
    """Write the traceback to a new file of mode 0600; its name with the error, or all of it where no file can be."""
    text = "".join(traceback.format_exception(error))
    told = f"an error that slurm_rl did not foresee: {type(error).__name__}: {_shorten(str(error))}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="slurm_rl-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(text)
    except OSError:
        return f"{told}\n{text}"
    return f"{told}. Next: report it with {file.name}, which has the traceback"


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"
