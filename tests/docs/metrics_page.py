"""Metric names in docs/reference/metrics.md."""

import re
from collections.abc import Iterable

from tests.docs.markdown import DOCS, read_tables, words_in_code

PAGE = DOCS / "reference/metrics.md"
# Keys of every row.
_OF_A_ROW = {"step", "stage"}


def named_on_the_page() -> set[str]:
    """Return keys and key families such as `score/<name>`."""
    return {key for row in read_tables(PAGE) for key in words_in_code(row[0])}


def find_unexplained(keys: Iterable[str]) -> set[str]:
    """Return the keys that the page does not name."""
    named = [re.sub("<[a-z]+>", "[^/]+", re.escape(key)) for key in named_on_the_page()]
    return {key for key in keys if key not in _OF_A_ROW and not any(re.fullmatch(one, key) for one in named)}
