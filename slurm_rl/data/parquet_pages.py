"""How many values the pages of a parquet column hold, by their own headers, which are read without the values.

The file's footer says it too, but decoding goes by the pages: a footer may say 10 where a page of 70 bytes repeats a
number two billion times. A header is a struct in Thrift's compact protocol
(https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift, PageHeader;
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md).
"""

from __future__ import annotations

from typing import Any, BinaryIO

from slurm_rl.errors import DataError

_TYPE, _COMPRESSED_SIZE, _NUM_VALUES = 1, 3, 1
"""Numbers of fields of PageHeader, and of the header of a data page in it."""
_DATA_HEADERS = {0: 5, 3: 8}
"""The two types of data pages, to the field of PageHeader that holds their own header."""
_I32, _STRUCT = 5, 12
_VARINTS, _FIXED_SIZES, _BINARY = (4, _I32, 6), {1: 0, 2: 0, 3: 1, 7: 8}, 8
"""How Thrift's types are written: integers, what has a size of its own (true, false, a byte, a double), bytes."""


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
