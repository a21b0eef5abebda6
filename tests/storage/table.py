"""Every writer against every error, at every call that the error may meet: `python -m tests.storage.table`.

An error comes from the n-th call of the writer on and stays, for n = 0, 1, 2, ... until the writer does without it.
Then the file system works again, and the writer must do its work.
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
from collections.abc import Iterable, Iterator
from pathlib import Path

from slurm_rl.errors import SlurmRLError
from slurm_rl.run_dir.io_errors import explain_io_error
from tests.storage.faults import HANG, Faults, build
from tests.storage.writers import WRITERS, Case, Writer

ERRORS = {errno.errorcode[code]: code for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)}
ERRORS["hang"] = HANG
_MOST_CALLS = 200
_MEMORY = Path("/dev/shm")  # where a sync costs nothing


def try_cell(writer: Writer, code: int, root: Path, faults: Faults) -> int:
    """At how many calls the error was met; raises AssertionError where what is promised does not hold."""
    for after in range(_MOST_CALLS):
        folder = root / f"{after}" / "here"
        folder.mkdir(parents=True)
        case = writer.prepare(folder)
        try:
            if code == HANG:
                with faults.failing(folder, code, after):
                    case.write()
                    is_met = faults.hits > 0
            else:
                is_met = _fail(case, folder, code, after, faults)
            if not is_met or code == HANG:
                assert case.is_written(), "without an error it must be written"
            if not is_met:
                return after
            if code != HANG:
                case.write()
            assert case.is_written(), "with room again it must be written"
        except Exception as error:
            raise AssertionError(f"at call {after}: {''.join(traceback.format_exception(error))}") from error
    raise AssertionError(f"more than {_MOST_CALLS} calls")


def _fail(case: Case, folder: Path, code: int, after: int, faults: Faults) -> bool:
    """Whether the error was met; then what was said of it is checked, and what it left."""
    caught: Exception | None = None
    said = io.StringIO()
    with contextlib.redirect_stderr(said), faults.failing(folder, code, after):
        try:
            case.write()
        except Exception as error:
            caught = error
        num_hits = faults.hits
    if num_hits == 0:
        assert caught is None, caught
        return False
    assert case.is_kept(), "nothing half may be left"
    if caught is None and case.raises:
        # It did without that call, as without the removal of something old.
        assert case.is_written(), "an error that is not told must cost nothing"
        return True
    assert case.raises or caught is None, repr(caught)
    text = said.getvalue() if caught is None else tell(caught, folder)
    is_told = os.strerror(code) in text and str(folder) in text
    assert is_told or (caught is None and case.is_written()), f"no word of what and where: {text!r}"
    return True


def tell(error: Exception, folder: Path) -> str:
    """What the user is told of it, as each process of a run does."""
    text = str(error) if isinstance(error, SlurmRLError) else explain_io_error(error, folder)
    assert text is not None, f"not known for a refusal: {error!r}"
    assert ". Next: " in text, f"no next action: {text}"
    return text


def run_table(names: Iterable[str]) -> Iterator[tuple[str, str, int, str]]:
    """Writer, error, number of calls, and what is wrong."""
    faults = Faults()
    for name in names:
        for error, code in ERRORS.items():
            with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as root:
                try:
                    yield name, error, try_cell(WRITERS[name], code, Path(root).resolve(), faults), ""
                except AssertionError as wrong:
                    yield name, error, 0, str(wrong)


def measure(*names: str) -> dict[str, dict[str, tuple[int, str]]]:
    """The table, made in a process of its own with the library preloaded."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "LD_PRELOAD": str(build(Path(folder)))}
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name, "--lines", *names],
            env=environment,
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


def render(table: dict[str, dict[str, tuple[int, str]]]) -> str:
    """At how many calls each error was met, as a table in Markdown."""
    lines = ["| files | " + " | ".join(ERRORS) + " |", "|---" * (len(ERRORS) + 1) + "|"]
    for name, cells in table.items():
        counts = ["FAILS" if wrong else str(num_calls) for num_calls, wrong in cells.values()]
        lines.append(f"| {WRITERS[name].files} | {' | '.join(counts)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--lines"]:
        lines = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # some writers print
        for row in run_table(sys.argv[2:] or WRITERS):
            print(json.dumps(row), file=lines, flush=True)
    else:
        found = measure()
        print(render(found))
        failed = [(name, error, wrong) for name, cells in found.items() for error, (_, wrong) in cells.items() if wrong]
        print(*failed, sep="\n", file=sys.stderr)
        sys.exit(bool(failed))
