"""Rows of an open parquet file, few at a time where a small file unpacks to much. Standard library alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

_MOST_ROWS = 32
"""At once: no slower than a thousand, and a value that stands once in the file may be that of every row."""
_MOST_BYTES = 256 << 20


def rows_at_once(num_bytes: int) -> int:
    """How many rows may be unpacked together of a row group that has so many bytes: one value may have them all.

    >>> rows_at_once(1 << 20), rows_at_once(100 << 20), rows_at_once(1 << 40)
    (32, 2, 1)
    """
    return max(1, min(_MOST_ROWS, _MOST_BYTES // max(1, num_bytes)))


def read_parquet_rows(file: Any, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Each row of a `pyarrow.parquet.ParquetFile` as a dict of these columns."""
    for group in range(file.num_row_groups):
        size = rows_at_once(file.metadata.row_group(group).total_byte_size)
        for batch in file.iter_batches(batch_size=size, row_groups=[group], columns=list(columns)):
            yield from batch.to_pylist()
