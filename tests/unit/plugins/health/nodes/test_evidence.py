"""Which nodes evidence keeps out, and for how long."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from slurm_rl import jsonl
from slurm_rl.plugins.health.nodes.evidence import (
    Evidence,
    Strength,
    find_bad,
    make_clearing,
    note_evidence,
    read_evidence,
)
from slurm_rl.run_dir import RunDir

_DAY = 86400.0


def _row(node: str, strength: Strength = "hard", attempt: int | None = 1, at: float = 1000.0) -> dict[str, object]:
    return Evidence.found(node, "ecc", "seen", strength, attempt=attempt, now=at).to_row()


def test_what_is_noted_is_read_again_with_an_event_and_the_name_of_the_run(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "addition")
    note_evidence(run, Evidence.found("n2", "shm", "0.1 GB free", "hard", attempt=3))
    (row,) = read_evidence(run)
    assert (row["node"], row["check"], row["attempt"], row["run"]) == ("n2", "shm", 3, "addition")
    (event,) = jsonl.read_rows(run.events)
    assert {key: event[key] for key in ("kind", "node", "check", "strength")} == {
        "kind": "node/unfit",
        "node": "n2",
        "check": "shm",
        "strength": "hard",
    }


def test_hard_holds_until_the_node_was_booted_or_for_a_week() -> None:
    rows = [_row("n1")]
    assert list(find_bad(rows, 1000 + 6.9 * _DAY)) == ["n1"]
    assert find_bad(rows, 1000 + 7.1 * _DAY) == {}
    assert list(find_bad(rows, 2000, {"n1": 999.0, "n2": 1500.0})) == ["n1"]
    assert find_bad(rows, 2000, {"n1": 1001.0}) == {}


def test_soft_counts_from_the_second_attempt_for_a_day_also_after_a_boot() -> None:
    once = [_row("n1", "soft", attempt=1), _row("n1", "soft", attempt=1, at=1001.0)]
    assert find_bad(once, 1002) == {}
    twice = [*once, _row("n1", "soft", attempt=2, at=2000.0)]
    assert list(find_bad(twice, 2001, {"n1": 1999.0})) == ["n1"]
    assert find_bad(twice, 1000 + _DAY + 10) == {}, "one of the two is over"


def test_a_clearing_voids_what_was_before_it_and_nothing_else() -> None:
    rows = [_row("n1"), _row("n2"), make_clearing("n1", 1500.0, "operator"), _row("n3", at=1500.0)]
    assert sorted(find_bad(rows, 2000)) == ["n2", "n3"]
    assert sorted(find_bad([*rows, _row("n1", at=1501.0)], 2000)) == ["n1", "n2", "n3"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)
_KEYS = ["time", "node", "check", "value", "strength", "attempt", "until", "run", "cleared"]


@given(st.dictionaries(st.sampled_from(_KEYS), _JSON))
def test_rows_of_any_form_keep_nobody_else_out(row: dict[str, object]) -> None:
    assert "n1" in find_bad([row, _row("n1", at=2e18)], 2e18) or row.get("node") == "n1"
