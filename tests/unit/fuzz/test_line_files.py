import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_rl.cli.progress import Progress
from slurm_rl.run_dir.jsonl import RowTail, find_damaged, parse_row, read_last_rows, read_lines, read_rows
from slurm_rl.run_dir.run_dir import RunDir, append_event, append_row, report_damage
from slurm_rl.trainers.common.metrics_log import keep_rows_up_to

FILES = ("events", "metrics", "samples")
_VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_ROWS = st.lists(st.dictionaries(st.text(max_size=8), _VALUES, max_size=4), max_size=6)


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=100, derandomize=True)
@given(rows=_ROWS, cut=st.integers(0, 400), lost=st.sampled_from((b"", b"\0" * 9, b'{"a": "\xc3')))
@example(rows=[{"step": 1}], cut=0, lost=b"")
def test_truncation_at_any_byte_loses_only_last_line(
    name: str, rows: list[dict[str, Any]], cut: int, lost: bytes
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        run = RunDir(folder)
        path: Path = getattr(run, name)
        content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        end = max(0, len(content) - cut)
        path.write_bytes(content[:end] + lost)
        whole = rows[: content[:end].count(b"\n")]
        torn = len(content[:end] + lost) - (content.rfind(b"\n", 0, end) + 1)
        assert read_rows(path) == read_lines(path) == RowTail(path).read_new() == whole
        assert read_last_rows(path, len(content) + 99) == whole
        assert find_damaged(path) == []
        if name == "events":
            append_event(run, "a/b")
        else:
            append_row(run, path, {"step": 1})
        assert [*read_rows(path)][: len(whole)] == whole and None not in read_lines(path)
        noted = [
            row for row in read_rows(run.events)[len(whole) if name == "events" else 0 :] if "cut_off_bytes" in row
        ]
        assert [(row["file"], row["cut_off_bytes"]) for row in noted] == ([(path.name, torn)] if torn else [])


@settings(max_examples=600, derandomize=True)
@given(st.binary(max_size=200) | st.text(alphabet='{}[]":,0123456789.eE+-truefalsn\\ \n', max_size=80).map(str.encode))
@example(b"[" * 200_000)  # deeper than the recursion limit
@example(b"9" * 5000)  # above Python's limit of integer digits
@example(b'{"a": NaN}')
def test_line_of_any_bytes_is_row_or_none(line: bytes) -> None:
    row = parse_row(line)
    assert row is None or isinstance(row, dict)


@settings(max_examples=200, derandomize=True)
@given(st.lists(st.binary(max_size=60) | _ROWS.map(lambda rows: json.dumps(rows[:1] and rows[0]).encode()), max_size=5))
def test_readers_pass_over_garbage(lines: list[bytes]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        run = RunDir(folder)
        run.metrics.write_bytes(b"\n".join(lines) + b"\n")
        before = run.metrics.read_bytes()
        num_lines = before.count(b"\n")
        assert len(read_lines(run.metrics)) == num_lines
        assert len(find_damaged(run.metrics)) == num_lines - len(read_rows(run.metrics))
        report_damage(run)
        keep_rows_up_to(run.metrics, 10**30)
        assert run.metrics.read_bytes() == before


@settings(max_examples=100, derandomize=True)
@given(_ROWS)
def test_display_accepts_damaged_run(rows: list[dict[str, Any]]) -> None:
    progress = Progress()
    for row in rows:
        progress.apply_event(
            {"kind": "a/b", "time": 1.0} | {key: row[key] for key in row if key not in ("kind", "time")}
        )
