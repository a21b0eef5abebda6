import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_rl.__main__ import main
from slurm_rl.config.load import load_config
from slurm_rl.launch.controller.create import create_run
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plugins.health.evidence import Evidence, clear_node, find_bad, is_row
from slurm_rl.plugins.health.site import merge, publish, read_site
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from tests.unit.fuzz.values import json_values

NOW = 1000.0


def row(node: str) -> dict[str, Any]:
    return Evidence.new(node, "ecc", "seen", "hard", attempt=1, now=NOW).to_row()


GOOD = row("n1")


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
def test_read_site_skips_hostile_file_with_warning(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    publish(str(tmp_path), [GOOD], now=NOW + 1)
    HOSTILE[name](tmp_path / "nodes" / "n2.json")
    rows = read_site(str(tmp_path))
    assert rows == [GOOD] and list(find_bad(rows, NOW + 2)) == ["n1"]
    assert "n2.json" in caplog.text
    publish(str(tmp_path), [row("n2")], now=NOW + 1)  # never raises; replaces the file if possible


@settings(max_examples=120, derandomize=True)
@given(st.dictionaries(st.sampled_from([*GOOD, "cleared"]), json_values(4)))
def test_rows_of_any_types_never_raise(changed: dict[str, Any]) -> None:
    rows = [{**GOOD, "node": "n2", **changed}, GOOD]
    assert "n1" in find_bad(rows, NOW + 1) or rows[0]["node"] == "n1"
    assert GOOD in merge(rows[:1], [GOOD], NOW + 1)
    assert isinstance(is_row(rows[0]), bool)


def test_publish_merges_rows_of_many_runs(tmp_path: Path) -> None:
    site = str(tmp_path)
    rows = [row(name) | {"run": "first"} for name in ("n1", "n2")]
    publish(site, rows, now=NOW + 1)
    publish(site, [*rows, row("n3")], now=NOW + 1)
    assert sorted(find_bad(read_site(site), NOW + 2)) == ["n1", "n2", "n3"]
    publish(site, [clear_node("n1", NOW + 3, "root")], now=NOW + 3)
    publish(site, rows, now=NOW + 4)
    assert sorted(find_bad(read_site(site), NOW + 4)) == ["n2", "n3"], "a repeated row stays cleared"
    assert len(json.loads((tmp_path / "nodes" / "n1.json").read_text())["rows"]) == 2


def test_publish_rejects_paths_and_logs_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    publish(str(tmp_path), [{"time": 1.0, "node": "../../x"}, {"time": 1.0, "node": ".."}], now=2.0)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    publish(str(tmp_path / "file"), [{"time": 1.0, "node": "n1"}], now=2.0)
    assert "other runs do not learn of n1" in caplog.text
    publish(None, [{"time": 1.0, "node": "n1"}])
    assert read_site(None) == []


def test_doctor_nodes_adds_lists_and_clears(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site, where = str(tmp_path), ["--site-dir", str(tmp_path)]
    assert main(["doctor", "--nodes", *where]) == 0
    assert "no bad nodes" in capsys.readouterr().err
    assert main(["doctor", "--nodes", "--exclude", "n1", "--exclude", "n2", "--why", "fan broken", *where]) == 0
    assert main(["doctor", "--nodes", *where]) == 0
    assert "n1  operator: fan broken" in capsys.readouterr().out
    assert main(["doctor", "--nodes", "--clear", "n1", *where]) == 0
    capsys.readouterr()
    assert main(["doctor", "--nodes", "--json", *where]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["n2"]
    wrong = (["n1"], ["--clear"], ["--exclude", "n3"], ["--clear", "n1", "--exclude", "n2", "--why", "x"])
    assert [main(["doctor", "--nodes", *words, *where]) for words in wrong] == [2] * 4
    assert list(find_bad(read_site(site), 0.0)) == ["n2"]


def test_doctor_nodes_writes_into_run_and_site(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    config = load_config(["+exp=demo", f"cluster.site_dir={tmp_path / 'site'}"])
    create_run(run, config, build_plan(config, str(run.path), SubmitFacts("python", 2, "test")))
    assert main(["doctor", "--nodes", "--exclude", "n1", "--why", "slow", "--run", str(run.path)]) == 0
    for rows in (read_rows(run.nodes), read_site(str(tmp_path / "site"))):
        assert list(find_bad(rows, 0.0)) == ["n1"]
