"""Every step of the documents that docs/from replaces has its answer, and what holds it.

`python -m tests.docs.test_from` counts the rows of the pages again, for their index.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, read_tables, words_in_code
from tests.lock import ROOT

FOLDER = DOCS / "from"
PAGES = sorted(path for path in FOLDER.glob("*.md") if not path.name.startswith(("index", "moving-")))
NOT_HERE = "not here: "


def count_row(page: Path) -> list[str]:
    """Steps, those that a test holds, those that cannot be here."""
    held = [cells[2] for cells in read_tables(page)]
    absent = sum(cell.startswith(NOT_HERE) for cell in held)
    return [str(len(held)), str(len(held) - absent), str(absent)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_step_is_answered_and_held(page: Path) -> None:
    rows = read_tables(page)
    assert len(rows) >= 15
    wrong = []
    for cells in rows:
        assert len(cells) == 3 and all(cells), f"an empty cell: {cells}"
        if not cells[2].startswith(NOT_HERE):
            tests = words_in_code(cells[2])
            wrong += [cells[2]] if not tests else [name for name in tests if not is_there(name)]
    assert wrong == [], "each row names tests, or begins `not here: ` and says why"


def is_there(name: str) -> bool:
    """Whether `tests/file.py::test_name` is, or the file alone."""
    path, _, test = name.partition("::")
    file = ROOT / path
    return path.startswith("tests/") and file.is_file() and (not test or f"def {test}(" in file.read_text())


def test_a_test_that_is_not_there_is_seen() -> None:
    assert is_there("tests/docs/test_from.py::test_a_test_that_is_not_there_is_seen")
    assert not is_there("tests/docs/test_from.py::test_of_nothing") and not is_there("tests/docs/test_nothing.py")


def test_the_index_counts_the_rows_of_every_page() -> None:
    rows = {re.findall(r"\]\(([\w-]+\.md)\)", cells[1])[0]: cells[2:] for cells in read_tables(FOLDER / "index.md")}
    assert rows == {page.name: count_row(page) for page in PAGES}


if __name__ == "__main__":
    index = FOLDER / "index.md"
    text = index.read_text()
    for page in PAGES:
        numbers = " | ".join(count_row(page))
        text = re.sub(rf"(\]\({page.name}\) \|).*", rf"\1 {numbers} |", text)
    index.write_text(text)
