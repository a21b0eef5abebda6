"""docs/security.md names the test of each claim; here: that the test is there."""

from __future__ import annotations

import re

from tests.lock import ROOT


def test_every_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`((?:unit|train|slurm)/[\w/]+(?:\.py)?)`", (ROOT / "docs/security.md").read_text())
    assert len(named) > 20
    assert [path for path in named if not (ROOT / "tests" / path).exists()] == []
