"""Check that the tests and examples named by docs/ exist."""

import re
from pathlib import Path

import pytest

from tests.docs.markdown import pages
from tests.lock import ROOT

_ROOMS = "unit|train|slurm|machines|storage|contracts|image|gpu|examples"
_PATH = re.compile(rf"(?<![\w/.-])tests/((?:{_ROOMS}|docs)(?:/\w+)+(?:\.py)?)(?![\w/<-])")
# Paths relative to tests/, in the pages of SHORT only.
_SHORT = re.compile(rf"`((?:{_ROOMS})(?:/\w+)+(?:\.py)?)`")
SHORT = ("security.md", "storage.md")
LEAST = {"security.md": 20, "storage.md": 4, "promises.md": 40}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_named_by_page_exist(page: Path) -> None:
    text = page.read_text()
    named = {*_PATH.findall(text), *(_SHORT.findall(text) if page.name in SHORT else [])}
    assert len(named) >= LEAST.get(page.name, 0)
    assert [path for path in sorted(named) if not any((ROOT / "tests").glob(f"{path}*"))] == []


def test_examples_named_by_page_exist() -> None:
    found = {(page, path) for page in pages() for path in re.findall(r"`(examples/\w+)/?`", page.read_text())}
    assert len(found) >= 8, "data.md, rewards.md and others link to examples"
    assert [f"{page.name}: {path}" for page, path in sorted(found) if not (ROOT / path).is_dir()] == []
