"""Each step of the recipes in docs/from has an answer and a test.

`python -m tests.docs.test_from` updates the counts in docs/from/index.md.
"""

import re
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, code_spans, read_tables
from tests.lock import ROOT

FOLDER = DOCS / "from"
PAGES = sorted(path for path in FOLDER.glob("*.md") if not path.name.startswith(("index", "moving-")))
NOT_TESTED = "not tested: "


def count_row(page: Path) -> list[str]:
    """Return the numbers of steps, of tested ones and of untested ones."""
    tested = [cells[2] for cells in read_tables(page)]
    absent = sum(cell.startswith(NOT_TESTED) for cell in tested)
    return [str(len(tested)), str(len(tested) - absent), str(absent)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_steps_have_answer_and_test(page: Path) -> None:
    rows = read_tables(page)
    assert len(rows) >= 15
    wrong = []
    for cells in rows:
        assert len(cells) == 3 and all(cells), f"an empty cell: {cells}"
        if not cells[2].startswith(NOT_TESTED):
            tests = code_spans(cells[2])
            wrong += [cells[2]] if not tests else [name for name in tests if not exists(name)]
    assert wrong == [], "each row names tests, or begins `not tested: ` and says why"


def exists(name: str) -> bool:
    """Return whether `tests/file.py::test_name` exists, or the file if there is no `::`."""
    path, _, test = name.partition("::")
    file = ROOT / path
    return path.startswith("tests/") and file.is_file() and (not test or f"def {test}(" in file.read_text())


def test_index_counts_match_pages() -> None:
    rows = {re.findall(r"\]\(([\w-]+\.md)\)", cells[1])[0]: cells[2:] for cells in read_tables(FOLDER / "index.md")}
    assert rows == {page.name: count_row(page) for page in PAGES}


if __name__ == "__main__":
    index = FOLDER / "index.md"
    text = index.read_text()
    for page in PAGES:
        numbers = " | ".join(count_row(page))
        text = re.sub(rf"(\]\({page.name}\) \|).*", rf"\1 {numbers} |", text)
    index.write_text(text)
