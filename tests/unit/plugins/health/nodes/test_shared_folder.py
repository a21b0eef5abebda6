"""Files in `cluster.site_dir` that somebody else wrote."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_rl.jsonl import read_rows
from slurm_rl.plugins.health.nodes.evidence import Evidence, find_bad, find_passed, is_row
from slurm_rl.plugins.health.nodes.site import merge, publish, read_site
from tests.unit.fuzz.values import json_values

NOW = 1000.0
GOOD = Evidence.found("n1", "ecc", "seen", "hard", attempt=1, now=NOW).to_row()


def _rows(*rows: Any) -> Callable[[Path], None]:
    return lambda path: path.write_text(json.dumps({"rows": rows})) and None


HOSTILE: dict[str, Callable[[Path], None]] = {
    "fifo": lambda path: os.mkfifo(path),
    "folder": lambda path: path.mkdir(),
    "link": lambda path: path.symlink_to(path.with_name("n1.json")),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "large": lambda path: path.write_text(json.dumps({"rows": [], "more": "x" * 1_000_001})) and None,
    "deep": lambda path: path.write_text("[" * 100_000) and None,
    "bytes": lambda path: path.write_bytes(b"\xff\xfe") and None,
    "list": lambda path: path.write_text("[]") and None,
    "rows are text": lambda path: path.write_text('{"rows": "abc"}') and None,
    "node is a list": _rows({**GOOD, "node": []}),
    "node is a path": _rows({**GOOD, "node": "../n2"}),
    "attempt is a list": _rows({**GOOD, "node": "n2", "strength": "soft", "attempt": []}),
    "run is an object": _rows({**GOOD, "node": "n2", "strength": "soft", "run": {}}),
    "strength is a list": _rows({**GOOD, "node": "n2", "strength": []}),
    "time is too large": _rows({**GOOD, "node": "n2", "time": 10**400}),
    "time is NaN": _rows({**GOOD, "node": "n2", "time": float("nan")}),
    "cleared in the future": _rows({"time": 1e15, "node": "n1", "cleared": "x"}),
    "long text": _rows({**GOOD, "node": "n2", "value": "x" * 2001}),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_read_site_skips_a_hostile_file_with_a_warning(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(str(tmp_path), [GOOD], now=NOW + 1)
    HOSTILE[name](tmp_path / "nodes" / "n2.json")
    rows = read_site(str(tmp_path))
    assert rows == [GOOD] and list(find_bad(rows, NOW + 2)) == ["n1"] and find_passed(rows, "fabric", 0.0) == set()
    assert "n2.json" in capsys.readouterr().err
    other = Evidence.found("n2", "ecc", "seen", "hard", attempt=1, now=NOW).to_row()
    publish(str(tmp_path), [other], now=NOW + 1)  # never raises; replaces what can be replaced


@pytest.mark.timeout(60)
def test_read_rows_does_not_wait_for_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "nodes.jsonl")
    with pytest.raises(OSError, match="not a regular file"):
        read_rows(tmp_path / "nodes.jsonl")


@settings(max_examples=500, derandomize=True)
@given(st.dictionaries(st.sampled_from([*GOOD, "cleared", "passed"]), json_values(4)))
def test_rows_of_any_types_never_raise(changed: dict[str, Any]) -> None:
    row = {**GOOD, "node": "n2", **changed}
    rows = [row, GOOD]
    assert "n1" in find_bad(rows, NOW + 1) or row["node"] == "n1"
    find_passed(rows, "fabric", 0.0)
    assert GOOD in merge([row], [GOOD], NOW + 1)
    assert isinstance(is_row(row), bool)
