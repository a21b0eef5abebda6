from __future__ import annotations

from pathlib import Path

from slurm_rl.report.jsonl import JsonlTail, read_rows


def test_lines_that_a_crash_cut_or_garbled_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2{"a": 3}\n\x00\xff\n[4]\n{"a": 5}\n{"a": 6')
    assert read_rows(path) == [{"a": 1}, {"a": 5}]


def test_a_missing_file_has_no_rows(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "none.jsonl") == []


def test_a_tail_gives_each_row_once_and_waits_for_the_newline(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    tail = JsonlTail(path)
    assert tail.read_new() == []
    path.write_text('{"a": 1}\n{"a":')
    assert tail.read_new() == [{"a": 1}]
    with path.open("a") as file:
        file.write(" 2}\n")
    assert tail.read_new() == [{"a": 2}]
    assert tail.read_new() == []


def test_a_replaced_file_is_read_again(tmp_path: Path) -> None:
    path, beside = tmp_path / "rows.jsonl", tmp_path / "beside"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    tail = JsonlTail(path)
    tail.read_new()
    beside.write_text('{"a": 1}\n{"a": 7}\n{"a": 8}\n')
    beside.replace(path)
    assert tail.read_new() == [{"a": 1}, {"a": 7}, {"a": 8}]
