"""docs/security.md and docs/storage.md name the test of each claim; here: that the test is there."""

from __future__ import annotations

import re

import pytest

from tests.lock import ROOT


@pytest.mark.parametrize(("page", "number"), [("security.md", 20), ("storage.md", 4)])
def test_every_test_that_the_page_names_is_there(page: str, number: int) -> None:
    named = re.findall(r"`((?:unit|train|slurm)/[\w/]+(?:\.py)?)`", (ROOT / "docs" / page).read_text())
    assert len(named) > number
    assert [path for path in named if not (ROOT / "tests" / path).exists()] == []
