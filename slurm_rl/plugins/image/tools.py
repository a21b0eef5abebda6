"""Run the programs that make images: show their output, and put its end into the error."""

import errno
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, cast

from slurm_rl.errors import ConfigError
from slurm_rl.run_dir.meter import measure

_TAIL = 12
_ROOM = "make room there, or name another folder: TMPDIR for the work, container.image for the result"


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"image   {text}", file=sys.stderr, flush=True)


def run_tool(argv: Sequence[str], *, grows: Path | None = None) -> None:
    """Run a program to its end, its output on stderr.

    Args:
        grows: output file; its size is the progress.

    Raises:
        ConfigError: it failed; with the end of its output.
    """
    say("$ " + " ".join(argv))
    last: deque[str] = deque(maxlen=_TAIL)
    progress = nullcontext() if grows is None else measure(f"image   {grows.name}", poll=lambda: grows.stat().st_size)
    with progress, subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                last.append(line.decode(errors="replace").rstrip())
                print(f"        {last[-1]}", file=sys.stderr, flush=True)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise _tool_error(argv, process.returncode, "\n".join(last))


def try_tool(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program that may fail, and capture its output."""
    return subprocess.run(argv, capture_output=True, text=True, errors="replace")


@contextmanager
def open_output(argv: Sequence[str]) -> Iterator[BinaryIO]:
    """Yield the output of a program as a stream; raise ConfigError afterwards if the program failed."""
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        stream = cast(BinaryIO, process.stdout)
        try:
            yield stream
            stream.read()
        except ConfigError:
            # An incomplete stream is the consequence if the program failed.
            stream.read()
            if process.wait() == 0:
                raise
        except BaseException:
            process.kill()
            raise
        if process.wait():
            errors.seek(0)
            raise _tool_error(argv, process.returncode, errors.read().decode(errors="replace"))


def _tool_error(argv: Sequence[str], code: int, output: str) -> ConfigError:
    tail = "\n".join(output.strip().splitlines()[-_TAIL:])
    if "no space left on device" in output.lower():
        return ConfigError("an image needs room on the disk", seen=tail, action=_ROOM)
    return ConfigError(f"{' '.join(argv[:2])} must succeed", seen=f"exit status {code}\n{tail}".rstrip())


def explain_os_error(error: OSError) -> ConfigError:
    """Convert an error of our own reading and writing."""
    where = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ConfigError("an image needs room on the disk", seen=where, action=_ROOM)
    return ConfigError("the image's files must be readable and writable", seen=where, action="see its folder's rights")
