"""Pages name the test of each claim, and examples; here: that these are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.markdown import pages
from tests.lock import ROOT

_ROOMS = "unit|train|slurm|machines|storage|contracts|image|gpu|examples"
_PATH = re.compile(rf"(?<![\w/.-])tests/((?:{_ROOMS}|docs)(?:/\w+)+(?:\.py)?)(?![\w/<-])")
# These name theirs from tests/ on.
_SHORT = re.compile(rf"`((?:{_ROOMS})(?:/\w+)+(?:\.py)?)`")
SHORT = ("security.md", "storage.md")
LEAST = {"security.md": 20, "storage.md": 4, "promises.md": 40}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    named = {*_PATH.findall(text), *(_SHORT.findall(text) if page.name in SHORT else [])}
    assert len(named) >= LEAST.get(page.name, 0)
    assert [path for path in sorted(named) if not any((ROOT / "tests").glob(f"{path}*"))] == []


def test_every_example_that_a_page_names_is_there() -> None:
    found = {(page, path) for page in pages() for path in re.findall(r"`(examples/\w+)/?`", page.read_text())}
    assert len(found) >= 8, "data.md, rewards.md and others link to examples"
    assert [f"{page.name}: {path}" for page, path in sorted(found) if not (ROOT / path).is_dir()] == []
