"""Writers of each kind of file on a file system that fails, or hangs for a while."""

import shutil

import pytest

from tests.storage import table
from tests.storage.writers import WRITERS

Cells = dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def cells() -> dict[str, Cells]:
    if shutil.which("cc") is None:
        pytest.skip("the library that makes calls fail needs a C compiler")
    return table.measure()


@pytest.mark.parametrize("name", WRITERS)
def test_writer_reports_errors_and_leaves_no_partial_file(cells: dict[str, Cells], name: str) -> None:
    for error, (num_calls, wrong) in cells[name].items():
        assert not wrong, f"{error} {wrong}"
        assert num_calls > 0, f"no call met {error}"
    assert set(cells[name]) == set(table.ERRORS)
