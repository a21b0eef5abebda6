"""Parquet files that are small and claim, or unpack to, much."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from slurm_rl.data.parquet import open_parquet, read_parquet_rows
from slurm_rl.data.records import DataSource, read_records
from slurm_rl.errors import DataError

READ = """
import pyarrow.parquet, resource, sys
from slurm_rl.data.records import DataSource, read_records
source = DataSource(name=sys.argv[1], columns=(("input", "data.input_key"),))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(sum(len(row["input"]) for _, row in read_records(source)) >> 20)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""
READ_ALL = """
import sys
from slurm_rl.data.records import DataSource, read_records
for number, (_, row) in enumerate(read_records(DataSource(name=sys.argv[1], columns=(("input", "data.input_key"),)))):
    print(number + 1)
"""


def source_of(path: Path) -> DataSource:
    return DataSource(name=str(path), columns=(("input", "data.input_key"),))


def test_a_value_that_stands_once_for_many_rows_is_not_unpacked_for_all_of_them(tmp_path: Path) -> None:
    """600 bytes, of which 500 rows of a megabyte follow."""
    path = tmp_path / "bomb.parquet"
    values = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 500, pyarrow.int32()), ["x" * (1 << 20)])
    pyarrow.parquet.write_table(pyarrow.table({"input": values}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    megabytes, grown = map(int, done.stdout.split())
    assert megabytes == 500 and grown < 250


@pytest.mark.parametrize("is_deep", [False, True], ids=["strings", "messages"])
def test_a_row_whose_list_repeats_one_long_value_is_refused_before_it_is_unpacked(
    tmp_path: Path, is_deep: bool
) -> None:
    """A few kilobytes, of which a row of 2 GB would follow; the row before it is read."""
    path = tmp_path / "bomb.parquet"
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 2001, pyarrow.int32()), ["x" * (1 << 20)])
    items = pyarrow.StructArray.from_arrays([texts], ["content"]) if is_deep else texts
    rows = pyarrow.ListArray.from_arrays(pyarrow.array([0, 1, 2001], pyarrow.int32()), items)
    # Without its schema nothing in the file says that it wants to be read as it is kept.
    pyarrow.parquet.write_table(pyarrow.table({"input": rows}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 100_000
    program = f"import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)){READ_ALL}"
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["1"], done.stderr
    assert "at most 256 MB; got 2000 MB in row 1. Next: split it" in done.stderr


def test_lists_are_read_as_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = [
        {"input": [{"role": "user", "content": "a"}, {"role": "b", "content": None}], "images": [b"1", b""], "n": [1]},
        {"input": [], "images": None, "n": [2, 3]},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    with open_parquet(path) as file:
        assert list(read_parquet_rows(file, ["input", "images", "n"])) == rows


@pytest.mark.parametrize("length", [0, 7, 2**31 - 1, 2**32 - 1])
def test_a_foot_that_claims_another_length_is_no_parquet_file(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"input": ["a", "b"]}), path)
    path.write_bytes(path.read_bytes()[:-8] + struct.pack("<I", length) + b"PAR1")
    with pytest.raises(DataError, match="must be parquet"):
        list(read_records(source_of(path)))


def test_whatever_byte_of_it_is_wrong_it_is_read_or_refused(tmp_path: Path) -> None:
    """Numbers of rows, sizes of pages and offsets among them."""
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"input": ["a", "b"]}), path)
    whole = path.read_bytes()
    refused = 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        try:
            list(read_records(source_of(path)))
        except DataError:
            refused += 1
    assert refused > 100
