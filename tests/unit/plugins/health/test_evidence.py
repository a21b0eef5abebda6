from pathlib import Path

import pytest

from slurm_rl.plugins.health.evidence import Evidence, Strength, clear_node, find_bad, note_evidence, read_evidence
from slurm_rl.plugins.health.exclusion import Part, choose_excluded
from slurm_rl.run_dir.run_dir import RunDir, append_event

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
        ([row("n1")], 2000, {"n1": 999.0, "n2": 1500.0}, ["n1"]),
        ([row("n1")], 2000, {"n1": 1001.0}, []),
        (TWICE[:2], 1002, {}, []),
        (TWICE, 2001, {"n1": 1999.0}, ["n1"]),
        (TWICE, 1000 + DAY + 10, {}, []),
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
