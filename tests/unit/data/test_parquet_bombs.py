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
READ_ALL = """
import sys
from slurm_rl.data.records import DataSource, read_records
for number, (_, row) in enumerate(read_records(DataSource(name=sys.argv[1], columns=(("input", "data.input_key"),)))):
    print(number + 1)
"""


def source_of(path: Path) -> DataSource:
    return DataSource(name=str(path), columns=(("input", "data.input_key"),))


def test_repeated_value_is_not_expanded_for_all_rows(tmp_path: Path) -> None:
    """600 bytes expand to 500 rows of 1 MB."""
    path = tmp_path / "bomb.parquet"
    values = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 500, pyarrow.int32()), ["x" * (1 << 20)])
    pyarrow.parquet.write_table(pyarrow.table({"input": values}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    megabytes, grown = map(int, done.stdout.split())
    assert megabytes == 500 and grown < 250


@pytest.mark.parametrize("is_deep", [False, True], ids=["strings", "messages"])
def test_row_with_repeated_long_value_is_refused_before_decoding(tmp_path: Path, is_deep: bool) -> None:
    """A few kilobytes expand to a row of 2 GB; the row before it is read."""
    path = tmp_path / "bomb.parquet"
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 2001, pyarrow.int32()), ["x" * (1 << 20)])
    items = pyarrow.StructArray.from_arrays([texts], ["content"]) if is_deep else texts
    rows = pyarrow.ListArray.from_arrays(pyarrow.array([0, 1, 2001], pyarrow.int32()), items)
    # Without the schema, the file does not request the stored encoding.
    pyarrow.parquet.write_table(pyarrow.table({"input": rows}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 100_000
    program = f"import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)){READ_ALL}"
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["1"], done.stderr
    assert "at most 256 MB; got 2000 MB in row 1. Next: split the row" in done.stderr


NUM_ZEROS = 80_000_000


@pytest.fixture(scope="module")
def zeros(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two rows in a few hundred bytes: one number, and 80 million copies of it, in one page."""
    path = tmp_path_factory.mktemp("zeros") / "bomb.parquet"
    items = pyarrow.nulls(NUM_ZEROS, pyarrow.int8()).fill_null(0)
    rows = pyarrow.ListArray.from_arrays(pyarrow.array([0, 1, NUM_ZEROS], pyarrow.int32()), items)
    pyarrow.parquet.write_table(pyarrow.table({"input": rows}), path, compression="zstd")
    assert path.stat().st_size < 2_000
    return path


def test_read_refuses_repeated_number_before_decoding(zeros: Path) -> None:
    """80 million numbers take 400 MB in Arrow and 600 MB in a Python list."""
    before = pyarrow.total_allocated_bytes(), pyarrow.default_memory_pool().max_memory()
    with pytest.raises(
        DataError, match=r"row group must decode to at most 1024 MB; got 1220 MB of 2 rows\. Next: write"
    ):
        list(read_records(source_of(zeros)))
    assert pyarrow.default_memory_pool().max_memory() <= max(before) + (16 << 20)


@pytest.mark.parametrize("is_empty", [False, True], ids=["numbers", "empty lists"])
def test_row_with_too_many_values_is_refused(tmp_path: Path, is_empty: bool) -> None:
    path = tmp_path / "bomb.parquet"
    num = 9_000_000
    items = pyarrow.nulls(0 if is_empty else num, pyarrow.int8()).fill_null(0)
    if is_empty:
        items = pyarrow.ListArray.from_arrays(pyarrow.nulls(num + 1, pyarrow.int32()).fill_null(0), items)
    rows = pyarrow.ListArray.from_arrays(pyarrow.array([0, 1, num], pyarrow.int32()), items)
    pyarrow.parquet.write_table(pyarrow.table({"input": rows}), path)
    records = read_records(source_of(path))
    assert next(records)[1] == {"input": [[] if is_empty else 0]}
    with pytest.raises(DataError, match="at most 256 MB; got 274 MB in row 1"):
        next(records)


@pytest.mark.parametrize("values", [["a", "b"], [["a"], ["b", "c"]]], ids=["texts", "lists"])
@pytest.mark.parametrize("page", ["1.0", "2.0"])
def test_corrupted_byte_is_read_or_refused(tmp_path: Path, values: list[object], page: str) -> None:
    """Corrupt row counts, page sizes and offsets among other bytes."""
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"input": values}), path, data_page_version=page)
    whole = path.read_bytes()
    refused = 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        try:
            list(read_records(source_of(path)))
        except DataError:
            refused += 1
    assert refused > 100
