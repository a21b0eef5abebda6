"""Every writer against every error of a file system.

An error begins at the n-th call of the writer and stays, for n = 0, 1, 2, ... until the writer does not meet it. Then
the file system works again, and the writer must succeed.
"""

import contextlib
import errno
import io
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

from slurm_rl.errors import SlurmRLError
from slurm_rl.run_dir.io_errors import explain_io_error
from tests.storage.faults import HANG, Faults, build
from tests.storage.writers import WRITERS, Case, Prepare

ERRORS = {errno.errorcode[code]: code for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)}
ERRORS["hang"] = HANG
_FIRST_CALL_ONLY = (errno.EDQUOT, errno.ESTALE)
"""Errors that meet the same calls as ENOSPC and EIO, so that only their text differs."""
_MOST_CALLS = 200
_MEMORY = Path("/dev/shm")  # a sync costs nothing there


def try_cell(prepare: Prepare, code: int, root: Path, faults: Faults) -> int:
    """Return the number of calls that met the error.

    Raises:
        AssertionError: the error is not reported, leaves a partial file, or prevents a later write.
    """
    if code == HANG:
        case = prepare(_make(root / "here"))
        with faults.failing(root / "here", HANG, 0):
            case.write()
        assert case.is_written()
        return faults.hits
    for after in range(_MOST_CALLS):
        folder = _make(root / f"{after}" / "here")
        case = prepare(folder)
        try:
            if not _fail(case, folder, code, after, faults):
                assert case.is_written(), "without an error it must be written"
                return after
            case.write()
            assert case.is_written(), "with room again it must be written"
        except Exception as error:
            raise AssertionError(f"at call {after}: {''.join(traceback.format_exception(error))}") from error
        if code in _FIRST_CALL_ONLY:
            return 1
    raise AssertionError(f"more than {_MOST_CALLS} calls")


def _make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _fail(case: Case, folder: Path, code: int, after: int, faults: Faults) -> bool:
    """Return whether the error was met; check its message and the files that it left."""
    caught: Exception | None = None
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), faults.failing(folder, code, after):
        try:
            case.write()
        except Exception as error:
            caught = error
        num_hits = faults.hits
    if num_hits == 0:
        assert caught is None, caught
        return False
    assert case.is_kept(), "no partial file may be left"
    if caught is None and case.raises:
        # The writer does not need that call: it removes an old file.
        assert case.is_written(), "an error that is not reported must cost nothing"
        return True
    assert case.raises or caught is None, repr(caught)
    text = printed.getvalue() if caught is None else _explain(caught, folder)
    is_reported = os.strerror(code) in text and str(folder) in text
    assert is_reported or (caught is None and case.is_written()), f"error and path are missing: {text!r}"
    return True


def _explain(error: Exception, folder: Path) -> str:
    """Return the message for the user, as each process of a run prints it."""
    text = str(error) if isinstance(error, SlurmRLError) else explain_io_error(error, folder)
    assert text is not None, f"not recognized as an error of the file system: {error!r}"
    assert ". Next: " in text, f"no next action: {text}"
    return text


def _run_cells() -> Iterator[tuple[str, str, int, str]]:
    """Yield writer, error, number of calls, and the failed assertion."""
    faults = Faults()
    for name, prepare in WRITERS.items():
        for error, code in ERRORS.items():
            with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as root:
                try:
                    yield name, error, try_cell(prepare, code, Path(root).resolve(), faults), ""
                except AssertionError as wrong:
                    yield name, error, 0, str(wrong)


def measure() -> dict[str, dict[str, tuple[int, str]]]:
    """Return calls and failed assertion by writer and error, from a child process with the library preloaded."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name],
            env={**os.environ, "LD_PRELOAD": str(build(Path(folder)))},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        )
    table: dict[str, dict[str, tuple[int, str]]] = {}
    for line in done.stdout.splitlines():
        name, error, num_calls, wrong = json.loads(line)
        table.setdefault(name, {})[error] = (num_calls, wrong)
    return table


if __name__ == "__main__":
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some writers print
    for row in _run_cells():
        print(json.dumps(row), file=lines, flush=True)
