"""Metric names in docs/reference/metrics.md."""

import re
from collections.abc import Iterable

from tests.docs.markdown import DOCS, code_spans, read_tables

PAGE = DOCS / "reference/metrics.md"
# Keys of every row.
_OF_A_ROW = {"step", "stage"}


def read_page_keys() -> set[str]:
    """Return keys and key families such as `score/<name>`."""
    return {key for row in read_tables(PAGE) for key in code_spans(row[0])}


def find_unexplained(keys: Iterable[str]) -> set[str]:
    """Return the keys that the page does not name."""
    named = [re.sub("<[a-z]+>", "[^/]+", re.escape(key)) for key in read_page_keys()]
    return {key for key in keys if key not in _OF_A_ROW and not any(re.fullmatch(one, key) for one in named)}
