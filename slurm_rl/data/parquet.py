"""Rows of a parquet file, few at a time where a small file unpacks to much; pyarrow is imported when it is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from slurm_rl.errors import DataError

_MOST_ROWS = 32
"""At once: no slower than a thousand, and a value that stands once in the file may be that of every row."""
_MOST_BYTES = 256 << 20
"""Of rows that are unpacked together, and of one row."""


def rows_at_once(num_bytes: int) -> int:
    """How many rows may be unpacked together of a row group that has so many bytes: one value may have them all.

    >>> rows_at_once(1 << 20), rows_at_once(100 << 20), rows_at_once(1 << 40)
    (32, 2, 1)
    """
    return max(1, min(_MOST_ROWS, _MOST_BYTES // max(1, num_bytes)))


def open_parquet(path: Path) -> Any:
    """The file, as pyarrow has it; what a list repeats is kept once until it is known how much it is."""
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    columns = [file.schema.column(number) for number in range(len(file.schema))]
    in_lists = [one.path for one in columns if one.max_repetition_level and one.physical_type == "BYTE_ARRAY"]
    if not in_lists:
        return file
    with file:
        return pyarrow.parquet.ParquetFile(path, read_dictionary=in_lists, metadata=file.metadata)


def read_parquet_rows(file: Any, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Each row of a file that `open_parquet` opened as a dict of these columns.

    Raises:
        DataError: a row would take more than 256 MB.
    """
    number = 0
    for group in range(file.num_row_groups):
        size = rows_at_once(file.metadata.row_group(group).total_byte_size)
        for batch in file.iter_batches(batch_size=size, row_groups=[group], columns=list(columns)):
            for row in _split(batch):
                if (num_bytes := _unpacked_bytes(row)) > _MOST_BYTES:
                    raise DataError(
                        f"a row of parquet must unpack to at most {_MOST_BYTES >> 20} MB",
                        seen=f"{num_bytes >> 20} MB in row {number}",
                        action="split it, or leave it out",
                    )
                yield from row.to_pylist()
                number += row.num_rows


def _split(batch: Any) -> list[Any]:
    """The batch, in single rows where it is too much as a whole."""
    if _unpacked_bytes(batch) <= _MOST_BYTES:
        return [batch]
    return [batch.slice(at, 1) for at in range(batch.num_rows)]


def _unpacked_bytes(batch: Any) -> int:
    return sum(_bytes_of(column) for column in batch.columns)


def _bytes_of(array: Any) -> int:
    """What the values would take that a list in it repeats; those outside of lists are bounded by their number."""
    import pyarrow
    import pyarrow.compute as compute

    if pyarrow.types.is_dictionary(array.type):
        lengths = compute.binary_length(array.dictionary)
        return compute.sum(compute.cast(compute.take(lengths, array.indices), "int64")).as_py() or 0
    if pyarrow.types.is_struct(array.type):
        return sum(_bytes_of(child) for child in array.flatten())
    if pyarrow.types.is_list(array.type) or pyarrow.types.is_large_list(array.type):
        return _bytes_of(array.flatten())
    if pyarrow.types.is_map(array.type):
        return _bytes_of(array.keys) + _bytes_of(array.items)
    return 0
