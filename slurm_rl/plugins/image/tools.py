"""Programs that make images: run with their output shown, their last words in the error."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, cast

from slurm_rl.errors import ConfigError
from slurm_rl.run_dir.meter import measure

_TAIL = 12
_ROOM = "make room there, or name another folder: TMPDIR for the work, container.image for the result"


def say(text: str) -> None:
    """One line of progress."""
    print(f"image   {text}", file=sys.stderr, flush=True)


def run_tool(argv: Sequence[str], *, grows: Path | None = None) -> None:
    """Run a program to its end, its output on our stderr.

    Args:
        grows: a file it writes, whose size is shown now and then.

    Raises:
        ConfigError: it failed; with its last words.
    """
    say("$ " + " ".join(argv))
    last: deque[str] = deque(maxlen=_TAIL)
    with _show_growth(grows), subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                last.append(line.decode(errors="replace").rstrip())
                print(f"        {last[-1]}", file=sys.stderr, flush=True)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise tool_error(argv, process.returncode, "\n".join(last))


def ask_tool(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program for its output; the exit code is for the caller to judge."""
    return subprocess.run(argv, capture_output=True, text=True, errors="replace")


def tell_tool(argv: Sequence[str]) -> str:
    """Output of a program that must succeed."""
    done = ask_tool(argv)
    if done.returncode:
        raise tool_error(argv, done.returncode, done.stderr or done.stdout)
    return done.stdout


@contextmanager
def open_output(argv: Sequence[str]) -> Iterator[BinaryIO]:
    """A program's output as a stream; ConfigError afterwards when it failed."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        words: list[bytes] = []
        # It would block on a full pipe while we wait for its other one.
        reader = threading.Thread(target=lambda: words.append(cast(BinaryIO, process.stderr).read()))
        reader.start()
        try:
            yield cast(BinaryIO, process.stdout)
            process.stdout.read()
        except ConfigError:
            # What came was not whole; when the program failed, that is why.
            process.stdout.read()
            if process.wait() == 0:
                raise
        except BaseException:
            process.kill()
            raise
        finally:
            reader.join()
    if process.returncode:
        raise tool_error(argv, process.returncode, b"".join(words).decode(errors="replace"))


def tool_error(argv: Sequence[str], code: int, words: str) -> ConfigError:
    """What a failed program tells the user."""
    tail = "\n".join(words.strip().splitlines()[-_TAIL:])
    if "no space left on device" in words.lower():
        return ConfigError("an image needs room on the disk", seen=tail, action=_ROOM)
    return ConfigError(f"{' '.join(argv[:2])} must succeed", seen=f"exit status {code}\n{tail}".rstrip())


def explain_os_error(error: OSError) -> ConfigError:
    """The same for what our own reading and writing meets."""
    where = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ConfigError("an image needs room on the disk", seen=where, action=_ROOM)
    return ConfigError("the image's files must be readable and writable", seen=where, action="see its folder's rights")


def _show_growth(path: Path | None) -> AbstractContextManager[Any]:
    """The size of a file that a silent program writes."""
    return nullcontext() if path is None else measure(f"image   {path.name}", poll=lambda: path.stat().st_size)
