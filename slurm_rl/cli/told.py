"""Error handler around every command: messages on stderr, and an exit code by kind of error.

Control characters in text from logs, causes and names are shown as words, so that they cannot control the terminal.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.controller.attempts import EXIT_FAILED, EXIT_INTERRUPTED
from slurm_rl.run_dir.io_errors import explain_io_error

# C0 and C1 control characters and bidirectional overrides, without line feed and tabulator.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SHOWN = 80


def run_told(work: Callable[[], int]) -> int:
    """The exit code: 0 finished, 1 failed, 2 bad input, 130 interrupted."""
    try:
        return work()
    except SlurmRLError as error:
        print(f"slurm_rl: {show_plainly(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) left; so do we, and nothing is flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except Exception as error:
        print(f"slurm_rl: {show_plainly(explain(error))}", file=sys.stderr)
        return EXIT_FAILED


def tell(text: str) -> None:
    """Print a line to stderr, separate from the command's output."""
    print(text, file=sys.stderr, flush=True)


def show_plainly(text: str) -> str:
    r"""The text with its control characters in words; a progress bar's carriage return begins a new line.

    >>> show_plainly("10%\r20%\r\n\x1b]0;title\x07 \x1b[2J")
    '10%\n20%\n\\x1b]0;title\\x07 \\x1b[2J'
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return _COMMANDS.sub(lambda found: ascii(found[0])[1:-1], lines)


def explain(error: Exception) -> str:
    """Return the message for an error; for an unforeseen one also the file with its traceback."""
    if refusal := explain_io_error(error, Path()):
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
