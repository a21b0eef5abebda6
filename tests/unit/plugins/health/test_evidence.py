import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_rl.__main__ import main
from slurm_rl.plugins.health.evidence import (
    Evidence,
    Strength,
    clear_node,
    find_bad,
    is_row,
    note_evidence,
    read_evidence,
)
from slurm_rl.plugins.health.exclusion import Part, choose_excluded
from slurm_rl.plugins.health.site import merge, publish, read_site
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir, append_event, write_json
from tests.plans import plan_of
from tests.unit.fuzz.values import json_values

DAY = 86400.0
NAMES = [f"n{number}" for number in range(1, 41)]
ALL = (set(NAMES), set(NAMES))
FEW = (set(NAMES), set(NAMES[:9]))
SIX = set(NAMES[:6])


def row(node: str, strength: Strength = "hard", attempt: int | None = 1, at: float = 1000.0) -> dict[str, object]:
    return Evidence.new(node, "ecc", "seen", strength, attempt=attempt, now=at).to_row()


def test_evidence_of_checks_and_events_is_read_once(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "addition")
    note_evidence(run, Evidence.new("n2", "shm", "0.1 GB free", "hard", attempt=3))
    for attempt in (3, 4):
        append_event(run, "node/unfit", node="n5", check="hang", value="stuck", strength="soft", attempt=attempt)
    rows = [(row["node"], row["check"], row["attempt"], row["run"]) for row in read_evidence(run)]
    assert rows == [("n2", "shm", 3, "addition"), ("n5", "hang", 3, "addition"), ("n5", "hang", 4, "addition")]
    assert sorted(find_bad(read_evidence(run), 0.0)) == ["n2", "n5"]


TWICE = [row("n1", "soft", 1), row("n1", "soft", 1, at=1001.0), row("n1", "soft", 2, at=2000.0)]


@pytest.mark.parametrize(
    ("rows", "now", "boots", "bad"),
    [
        ([row("n1")], 1000 + 6.9 * DAY, {}, ["n1"]),
        ([row("n1")], 1000 + 7.1 * DAY, {}, []),
        ([row("n1")], 2000, {"n1": 1001.0}, []),
        (TWICE[:2], 1002, {}, []),
        (TWICE, 2001, {"n1": 1999.0}, ["n1"]),
        ([row("n1"), row("n2"), clear_node("n1", 1500.0, "ada"), row("n3", at=1500.0)], 2000, {}, ["n2", "n3"]),
        ([row("n1"), clear_node("n1", 1500.0, "ada"), row("n1", at=1501.0)], 2000, {}, ["n1"]),
    ],
)
def test_find_bad_respects_expiry_boots_and_clearings(
    rows: list[dict[str, object]], now: float, boots: dict[str, float], bad: list[str]
) -> None:
    assert sorted(find_bad(rows, now, boots)) == bad


def bad(*names: str, strength: Strength = "hard", at: float = 1000.0) -> dict[str, Evidence]:
    return {name: Evidence.new(name, "ecc", "seen", strength, attempt=1, now=at) for name in names}


def test_choose_excluded_takes_share_newest_first() -> None:
    found = choose_excluded(
        bad("n1", "n2", "n3") | bad("n4", at=2000.0) | bad("n5", strength="soft", at=3000.0), [Part(*ALL, 8)], share=0.1
    )
    assert found.names == ["n4", "n1", "n2", "n3"]
    assert found.skipped["n5"] == "4 of 40 nodes may be excluded (preflight.max_excluded_share)"


@pytest.mark.parametrize(
    ("nodes", "part", "excluded", "required", "names"),
    [
        (["n1", "n2", "n3"], Part({"n1", "n2", "n3"}, {"n1", "n2", "n3"}, 1), [], [], ["n1"]),
        (["other", "n1"], Part(*ALL, 8), [], [], ["n1"]),
        (["n1", "n2"], Part(*ALL, 8), ["n1"], ["n2"], []),
        (["n1"], Part(*FEW, 8), [], [], ["n1"]),
        (["n1"], Part(*FEW, 8), ["n2"], [], []),
        (["n30"], Part(*FEW, 9), [], [], ["n30"]),  # the job does not fit on n30
    ],
)
def test_choose_excluded_leaves_enough_nodes(
    nodes: list[str], part: Part, excluded: list[str], required: list[str], names: list[str]
) -> None:
    found = choose_excluded(bad(*nodes), [part], share=0.1, excluded=excluded, required=required)
    assert found.names == names


def test_choose_excluded_counts_nodes_by_kind() -> None:
    old, new = Part(SIX, {"n1", "n2"}, 1, "old"), Part(SIX, {"n3", "n4", "n5"}, 3, "new")
    found = choose_excluded(bad("n1") | bad("n3", at=500.0), [old, new], share=0.5)
    assert (found.names, found.skipped) == (["n1"], {"n3": "without it 2 nodes are left for the 3 of new"})
    assert choose_excluded(bad("n6"), [old, new], share=0.5).names == ["n6"]
    shared = [Part(SIX, SIX, 3, "a"), Part(SIX, SIX, 3, "b")]
    assert choose_excluded(bad("n1"), shared, share=0.5).skipped == {"n1": "without it 5 nodes are left for a job of 6"}


NOW = 1000.0
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
    "rows are text": lambda path: path.write_text('{"rows": "abc"}') and None,
    "node is a list": _rows({**GOOD, "node": []}),
    "node is a path": _rows({**GOOD, "node": "../n2"}),
    "attempt is a list": _rows({**GOOD, "node": "n2", "strength": "soft", "attempt": []}),
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


@settings(max_examples=60, derandomize=True)
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
    write_json(run.plan, plan_of(f"cluster.site_dir={tmp_path / 'site'}", run_dir=run.path).to_json())
    assert main(["doctor", "--nodes", "--exclude", "n1", "--why", "slow", "--run", str(run.path)]) == 0
    for rows in (read_rows(run.nodes), read_site(str(tmp_path / "site"))):
        assert list(find_bad(rows, 0.0)) == ["n1"]
