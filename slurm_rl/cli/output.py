"""Error handler around every command: messages on stderr, and an exit code by kind of error."""

import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from slurm_rl.cli.install_hint import PACKAGES, render_hint
from slurm_rl.errors import ConfigError, SlurmRLError
from slurm_rl.launch.controller.attempts import EXIT_FAILED, EXIT_INTERRUPTED
from slurm_rl.run_dir.io_errors import explain_io_error

# C0 and C1 control characters and bidirectional overrides, without line feed and tabulator.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SHOWN = 80


def catch_errors(work: Callable[[], int]) -> int:
    """Run a command, print its error, and return the exit code: 0 finished, 1 failed, 2 bad input, 130 interrupted."""
    try:
        return work()
    except SlurmRLError as error:
        print(f"slurm_rl: {to_printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has left; nothing must be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in PACKAGES:
            note(f"slurm_rl: the packages of slurm_rl must be installed: there is no {error.name}{render_hint()}")
            return ConfigError.exit_code
        print(f"slurm_rl: {to_printable(explain(error))}", file=sys.stderr)
        return EXIT_FAILED


def note(text: str) -> None:
    """Print a line to stderr, separate from the command's output."""
    print(text, file=sys.stderr, flush=True)


def to_printable(text: str) -> str:
    r"""Escape control characters, so that text from logs and names cannot control the terminal; CR begins a new line.

    >>> to_printable("10%\r20%\r\n\x1b]0;title\x07 \x1b[2J")
    '10%\n20%\n\\x1b]0;title\\x07 \\x1b[2J'
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return _COMMANDS.sub(lambda match: ascii(match[0])[1:-1], lines)


def explain(error: Exception) -> str:
    """Return the message for an error; for an unforeseen one also the file with its traceback."""
    if refusal := explain_io_error(error, Path()):
        return refusal
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"this machine refuses: {error.strerror}; got {_shorten(str(error.filename))}"
    return keep_traceback(error)


def keep_traceback(error: Exception) -> str:
    """Write the traceback to a new file of mode 0600, and return the error with its name, or with the traceback."""
    text = "".join(traceback.format_exception(error))
    message = f"unexpected error, a bug of slurm_rl: {type(error).__name__}: {_shorten(str(error))}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="slurm_rl-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(text)
    except OSError:
        return f"{message}\n{text}"
    return f"{message}. Next: report it with {file.name}, which has the traceback"


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"
