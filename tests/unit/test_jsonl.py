import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rl.run_dir.jsonl import RowTail, append_row, find_damaged, read_last_rows, read_rows
from slurm_rl.run_dir.run_dir import RunDir, report_damage
from slurm_rl.run_dir.run_dir import append_row as append_row_of
from tests.small_disk import small_disk


def test_tail_returns_rows_once_and_waits_for_newline(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    tail = RowTail(path)
    assert tail.read_new() == []
    path.write_text('{"a": 1}\n{"a":')
    assert tail.read_new() == [{"a": 1}]
    with path.open("a") as file:
        file.write(" 2}\n")
    assert tail.read_new() == [{"a": 2}]
    assert tail.read_new() == []


def test_replaced_file_is_read_again(tmp_path: Path) -> None:
    path, beside = tmp_path / "rows.jsonl", tmp_path / "beside"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    tail = RowTail(path)
    tail.read_new()
    beside.write_text('{"a": 1}\n{"a": 7}\n{"a": 8}\n')
    beside.replace(path)
    assert tail.read_new() == [{"a": 1}, {"a": 7}, {"a": 8}]


def test_truncated_line_is_event_and_damage_has_line_number(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    append_row_of(run, run.metrics, {"step": 1})
    with run.metrics.open("ab") as file:
        file.write(b'{"step": 2{"step": 2}\n{"st')
    append_row_of(run, run.metrics, {"step": 3})
    assert find_damaged(run.metrics) == [2]
    report_damage(run)
    told = [{key: value for key, value in row.items() if key != "time"} for row in read_rows(run.events)]
    assert told == [
        {"kind": "file/mended", "file": "metrics.jsonl", "cut_off_bytes": 4},
        {"kind": "file/damaged", "file": "metrics.jsonl", "lines": [2], "num_lines": 1},
    ]


def test_full_disk_leaves_no_part_of_line(tmp_path: Path) -> None:
    with small_disk(tmp_path, size_kb=64) as disk:
        path, written = disk / "rows.jsonl", 0
        with pytest.raises(OSError, match="No space left"):
            while True:
                append_row(path, {"text": "x" * 3000, "n": written})
                written += 1
        assert [row["n"] for row in read_rows(path)] == list(range(written))
        assert path.read_bytes().endswith(b"\n")


APPEND = """
import sys, threading
from pathlib import Path
from slurm_rl.run_dir.jsonl import append_row
def work(who):
    for n in range(100):
        append_row(Path(sys.argv[1]), {"who": who, "n": n, "text": "x" * 9000})
threads = [threading.Thread(target=work, args=(sys.argv[2] + str(n),)) for n in range(2)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
"""


def test_concurrent_writers_keep_lines_intact(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    children = [subprocess.Popen([sys.executable, "-c", APPEND, str(path), who]) for who in "ab"]
    assert [child.wait() for child in children] == [0, 0]
    rows = read_rows(path)
    assert find_damaged(path) == []
    for who in ("a0", "a1", "b0", "b1"):
        assert [row["n"] for row in rows if row["who"] == who] == list(range(100))


def test_last_rows_are_complete(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert read_last_rows(path, 10) == []
    path.write_text('{"a": {"b": 1}}\n{"a": 2}{"a": {"b": 3}}\n{"a": 4}\n{"a"')
    assert read_last_rows(path, 1000) == [{"a": {"b": 1}}, {"a": 4}]
    assert read_last_rows(path, 15) == [{"a": 4}]
