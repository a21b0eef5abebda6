"""Every family of text models is packed and exact, one a row and exact, or refused; and the page says which."""

from __future__ import annotations

import pytest
from transformers import logging

from tests.train.model_families import EXACT, FAMILIES, PAGE, study

logging.set_verbosity_error()
LINES = dict(
    line.strip("| ").split(" | ", 1) for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"
)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_exact_or_refused_as_the_page_says(family: str) -> None:
    found = study(family)
    rows, *errors = LINES[family].split(" | ")
    assert found.rows == rows
    assert not found.crosses
    if rows != "refused":
        assert found.as_chosen < EXACT
        assert (found.if_packed < EXACT) == (rows == "packed") == (errors[0] == "exact")


def test_the_page_has_no_other_families() -> None:
    assert set(LINES) - {"model type", "---"} == set(FAMILIES)
