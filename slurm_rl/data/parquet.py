"""Rows of a parquet file, few at a time where a small file unpacks to much; pyarrow is imported when it is needed.

How many values a list column holds is read from the headers of its pages, without the values. The file's footer says it
too, but decoding goes by the pages: a footer may say 10 where a page of 70 bytes repeats a number two billion times. A
header is a struct in Thrift's compact protocol
(https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift, PageHeader;
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from slurm_rl.errors import DataError

_MOST_ROWS = 32
"""At once: no slower than a thousand, and a value that stands once in the file may be that of every row."""
_MOST_BYTES = 256 << 20
"""Of rows that are unpacked together, and of one row."""
_MOST_DECODED_BYTES = 1 << 30
"""Of the lists of a row group, which on the disk may be one number and how often it comes."""
_VALUE_BYTES = 16
"""Of one value in a list as pyarrow has it, with its levels."""
_OBJECT_BYTES = 32
"""Of one value in a list as Python has it, beside its text."""

_TYPE, _COMPRESSED_SIZE, _NUM_VALUES = 1, 3, 1
"""Numbers of fields of PageHeader, and of the header of a data page in it."""
_DATA_HEADERS = {0: 5, 3: 8}
"""The two types of data pages, to the field of PageHeader that holds their own header."""
_I32, _STRUCT = 5, 12
_VARINTS, _FIXED_SIZES, _BINARY = (4, _I32, 6), {1: 0, 2: 0, 3: 1, 7: 8}, 8
"""How Thrift's types are written: integers, what has a size of its own (true, false, a byte, a double), bytes."""


def rows_at_once(num_bytes: int) -> int:
    """How many rows may be unpacked together of a row group that has so many bytes: one value may have them all.

    >>> rows_at_once(1 << 20), rows_at_once(100 << 20), rows_at_once(1 << 40)
    (32, 2, 1)
    """
    return max(1, min(_MOST_ROWS, _MOST_BYTES // max(1, num_bytes)))


def read_parquet_rows(path: Path, choose: Callable[[list[str]], Sequence[str]]) -> Iterator[dict[str, Any]]:
    """Each row of the file as a dict of the columns that `choose` takes of those that there are.

    Raises:
        DataError: a row would take more than 256 MB, or the lists of a row group more than may be decoded to find out.
    """
    number = 0
    with _open(path) as file, path.open("rb") as raw:
        columns = list(choose(file.schema_arrow.names))
        for group in range(file.num_row_groups):
            metadata = file.metadata.row_group(group)
            _check_lists(raw, file.schema, metadata, columns)
            size = rows_at_once(metadata.total_byte_size)
            for batch in file.iter_batches(batch_size=size, row_groups=[group], columns=columns):
                for row in _split(batch):
                    if (num_bytes := _unpacked_bytes(row)) > _MOST_BYTES:
                        raise DataError(
                            f"a row of parquet must unpack to at most {_MOST_BYTES >> 20} MB",
                            seen=f"{num_bytes >> 20} MB in row {number}",
                            action="split it, or leave it out",
                        )
                    yield from row.to_pylist()
                    number += row.num_rows


def _open(path: Path) -> Any:
    """The file, as pyarrow has it; text that a list repeats is kept once until it is known how much it is."""
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    columns = [file.schema.column(number) for number in range(len(file.schema))]
    in_lists = [one.path for one in columns if one.max_repetition_level and one.physical_type == "BYTE_ARRAY"]
    if not in_lists:
        return file
    with file:
        return pyarrow.parquet.ParquetFile(path, read_dictionary=in_lists, metadata=file.metadata)


def _check_lists(raw: BinaryIO, schema: Any, group: Any, columns: Sequence[str]) -> None:
    """Refuse lists of a row group that would decode to too much: one row may hold them all, and is decoded whole."""
    num_bytes = 0
    for number in range(group.num_columns):
        leaf, chunk = schema.column(number), group.column(number)
        if leaf.max_repetition_level and any(f"{leaf.path}.".startswith(f"{column}.") for column in columns):
            num_bytes += max(_VALUE_BYTES, leaf.length) * count_values(raw, chunk)
    if num_bytes > _MOST_DECODED_BYTES:
        raise DataError(
            f"the lists of a row group must decode to at most {_MOST_DECODED_BYTES >> 20} MB",
            seen=f"{num_bytes >> 20} MB of {group.num_rows} rows",
            action="write it anew with fewer rows a group (pyarrow: row_group_size), or leave the row out",
        )


def _split(batch: Any) -> list[Any]:
    """The batch, in single rows where it is too much as a whole."""
    if _unpacked_bytes(batch) <= _MOST_BYTES:
        return [batch]
    return [batch.slice(at, 1) for at in range(batch.num_rows)]


def _unpacked_bytes(batch: Any) -> int:
    return sum(_bytes_of(column) for column in batch.columns)


def _bytes_of(array: Any) -> int:
    """What the values would take that a list in it holds; those outside of lists are bounded by their number."""
    import pyarrow
    import pyarrow.compute as compute

    num_bytes = _OBJECT_BYTES * len(array)
    if pyarrow.types.is_dictionary(array.type):
        lengths = compute.binary_length(array.dictionary)
        return num_bytes + (compute.sum(compute.cast(compute.take(lengths, array.indices), "int64")).as_py() or 0)
    if pyarrow.types.is_fixed_size_binary(array.type):
        return num_bytes + array.type.byte_width * len(array)
    if pyarrow.types.is_struct(array.type):
        return num_bytes + sum(_bytes_of(child) for child in array.flatten())
    if pyarrow.types.is_map(array.type):
        return num_bytes + _bytes_of(array.keys) + _bytes_of(array.items)
    if isinstance(array, pyarrow.lib.BaseListArray):
        return num_bytes + _bytes_of(array.flatten())
    return num_bytes


def count_values(file: BinaryIO, chunk: Any) -> int:
    """Values of a column chunk, nulls and empty lists among them.

    Args:
        file: the parquet file, opened in binary mode; its position is changed.
        chunk: pyarrow's metadata of the chunk.

    Raises:
        DataError: there are no pages where the footer says.
    """
    file.seek(min(filter(None, (chunk.data_page_offset, chunk.dictionary_page_offset)), default=0))
    total = 0
    # As pyarrow does: the footer says when to stop, and a page is decoded whole.
    while total < chunk.num_values:
        try:
            header = _read_struct(file)
            size, data_header = header[_COMPRESSED_SIZE], _DATA_HEADERS.get(header[_TYPE])
            num_values = header[data_header][_NUM_VALUES] if data_header else 0
            if min(size, num_values) < 0:
                raise ValueError(f"a page of {size} bytes and {num_values} values")
            file.seek(size, 1)
        except (IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise DataError("the pages of a parquet file must be where its footer says", seen=repr(error)) from None
        total += num_values
    return total


def _read_struct(file: BinaryIO) -> dict[int, Any]:
    """Integers of 32 bits and structs by the number of their field; any other kind is passed over, as Thrift does."""
    fields: dict[int, Any] = {}
    number = 0
    while head := file.read(1)[0]:
        step, kind = head >> 4, head & 15
        if not step:
            raise ValueError("a field without a number, which no page has")
        number += step
        if kind == _STRUCT:
            fields[number] = _read_struct(file)
        elif kind in _VARINTS:
            value = _read_varint(file) & 0xFFFFFFFF
            if kind == _I32:
                fields[number] = (value >> 1) ^ -(value & 1)
        elif kind == _BINARY or kind in _FIXED_SIZES:
            file.seek(_read_varint(file) if kind == _BINARY else _FIXED_SIZES[kind], 1)
        else:
            raise ValueError(f"a field of kind {kind}, which no page has")
    return fields


def _read_varint(file: BinaryIO) -> int:
    """Seven bits a byte, the lowest first; the eighth says that another follows."""
    value, shift = 0, 0
    while (byte := file.read(1)[0]) & 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
    return value | byte << shift
