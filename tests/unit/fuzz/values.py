"""Hypothesis strategies of hostile content, and limits for reading it."""

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import strategies as st

_SECONDS, _BYTES, _BYTES_A_BYTE = 5.0, 4_000_000, 400


def json_values(most: int, *, allow_nan: bool = True) -> st.SearchStrategy[Any]:
    """Return any JSON value, including NaN and lone surrogates."""
    texts = st.text(st.characters(), max_size=8)
    leaves = (
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=allow_nan, allow_infinity=allow_nan) | texts
    )
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
        max_leaves=most,
    )


def mangled(data: bytes) -> st.SearchStrategy[bytes]:
    """Return the bytes unchanged, truncated, altered, or with a repeated part."""
    place = st.integers(0, len(data))
    return st.one_of(
        st.just(data),
        place.map(lambda end: data[:end]),
        st.tuples(place, st.binary(max_size=4)).map(lambda told: data[: told[0]] + told[1] + data[told[0] + 1 :]),
        st.tuples(place, place).map(lambda told: data[: max(told)] + data[min(told) :]),
    )


@contextmanager
def costs_at_most(num_bytes: int) -> Iterator[None]:
    """Limit time and memory for reading this number of bytes."""
    tracemalloc.start()
    started = time.process_time()
    try:
        yield
    finally:
        seconds, (_, peak) = time.process_time() - started, tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert seconds < _SECONDS, seconds
    assert peak < _BYTES + _BYTES_A_BYTE * num_bytes, peak
