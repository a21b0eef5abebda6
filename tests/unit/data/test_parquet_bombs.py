"""Parquet files that are small and claim, or unpack to, much."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

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
