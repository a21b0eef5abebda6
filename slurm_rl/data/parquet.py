"""Rows of a parquet file in small batches, because a small file may decode to a large table."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from slurm_rl.errors import DataError

_MAX_ROWS = 32
"""Rows per batch. Larger batches are no faster, and one dictionary value may be repeated in every row."""
_MAX_BYTES = 256 << 20
"""Limit for the decoded rows of a batch, and for one row."""
_MAX_LIST_BYTES = 1 << 30
"""Limit for the decoded lists of a row group."""
_VALUE_BYTES = 16
"""Size of a list value in Arrow, with its levels."""
_OBJECT_BYTES = 32
"""Size of a list value in Python, without its text."""


def batch_rows(num_bytes: int) -> int:
    """Return the rows to decode together of a row group of `num_bytes`; one row may hold all of them.

    >>> batch_rows(1 << 20), batch_rows(100 << 20), batch_rows(1 << 40)
    (32, 2, 1)
    """
    return max(1, min(_MAX_ROWS, _MAX_BYTES // max(1, num_bytes)))


def read_parquet_rows(path: Path, choose: Callable[[list[str]], Sequence[str]]) -> Iterator[dict[str, Any]]:
    """Yield each row as a dict of the columns that `choose` selects.

    Raises:
        DataError: a row decodes to more than 256 MB, or the lists of a row group to more than 1 GB.
    """
    number = 0
    with _open(path) as file:
        columns = list(choose(file.schema_arrow.names))
        for group in range(file.num_row_groups):
            metadata = file.metadata.row_group(group)
            _check_lists(file.schema, metadata, columns)
            size = batch_rows(metadata.total_byte_size)
            for batch in file.iter_batches(batch_size=size, row_groups=[group], columns=columns):
                is_small = _decoded_bytes(batch) <= _MAX_BYTES
                for row in [batch] if is_small else [batch.slice(at, 1) for at in range(batch.num_rows)]:
                    if (num_bytes := _decoded_bytes(row)) > _MAX_BYTES:
                        raise DataError(
                            f"a parquet row must decode to at most {_MAX_BYTES >> 20} MB",
                            seen=f"{num_bytes >> 20} MB in row {number}",
                            action="split the row or remove it",
                        )
                    yield from row.to_pylist()
                    number += row.num_rows


def _open(path: Path) -> Any:
    """Open the file; keep text in lists dictionary-encoded, so that its size is known before it is decoded."""
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    columns = [file.schema.column(number) for number in range(len(file.schema))]
    in_lists = [one.path for one in columns if one.max_repetition_level and one.physical_type == "BYTE_ARRAY"]
    if not in_lists:
        return file
    with file:
        return pyarrow.parquet.ParquetFile(path, read_dictionary=in_lists, metadata=file.metadata)


def _check_lists(schema: Any, group: Any, columns: Sequence[str]) -> None:
    """Refuse a row group with too many list values: pyarrow decodes one row whole, and one row may hold them all."""
    num_bytes = 0
    for number in range(group.num_columns):
        leaf = schema.column(number)
        if leaf.max_repetition_level and any(f"{leaf.path}.".startswith(f"{column}.") for column in columns):
            num_bytes += max(_VALUE_BYTES, leaf.length) * group.column(number).num_values
    if num_bytes > _MAX_LIST_BYTES:
        raise DataError(
            f"the lists of a row group must decode to at most {_MAX_LIST_BYTES >> 20} MB",
            seen=f"{num_bytes >> 20} MB of {group.num_rows} rows",
            action="write the file with fewer rows per group (pyarrow: row_group_size), or remove the row",
        )


def _decoded_bytes(batch: Any) -> int:
    return sum(map(_array_bytes, batch.columns))


def _array_bytes(array: Any) -> int:
    """Return the size in Python of the values in lists; values outside lists are bounded by the number of rows."""
    import pyarrow
    import pyarrow.compute as compute

    num_bytes = _OBJECT_BYTES * len(array)
    if pyarrow.types.is_dictionary(array.type):
        lengths = compute.binary_length(array.dictionary)
        return num_bytes + (compute.sum(compute.cast(compute.take(lengths, array.indices), "int64")).as_py() or 0)
    if pyarrow.types.is_fixed_size_binary(array.type):
        return num_bytes + array.type.byte_width * len(array)
    if pyarrow.types.is_struct(array.type):
        return num_bytes + sum(map(_array_bytes, array.flatten()))
    if pyarrow.types.is_map(array.type):
        return num_bytes + _array_bytes(array.keys) + _array_bytes(array.items)
    if isinstance(array, pyarrow.lib.BaseListArray):
        return num_bytes + _array_bytes(array.flatten())
    return num_bytes
