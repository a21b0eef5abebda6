"""How fast nodes write, and who of them is slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.plugins.health.gate.disks import compare_disks, read_disks
from slurm_rl.plugins.health.gate.verdict import Verdict, Wanted

WANTED = Wanted("cpu", 0, 4, "w", needs_python=True, asked=(0.0, 1.0))


def said(*seconds: float, place: str = "run_dir", status: int = 0) -> str:
    return "\n".join(f"write {place} {status} 1740327900.000000 {1740327900 + one:.6f}" for one in seconds)


def read(text: str) -> Verdict:
    return read_disks(text, 0, WANTED)


def test_each_place_has_its_best_try() -> None:
    found = read(f"{said(0.1)}\n{said(0.9, 0.2, place='tmp_root')}")
    assert (found.state, dict(found.facts)) == ("ok", {"run_dir": "83.89", "tmp_root": "41.94"})


@pytest.mark.parametrize(
    ("text", "state", "seen"),
    [
        (said(4.0, 2.0, 8.0), "warn", "writes to run_dir at 4.19 MB/s"),
        (said(10.0, 10.0, status=124), "warn", "writes to run_dir at 0.839 MB/s"),
        (said(0.1, status=1), "unknown", "run_dir: its speed cannot be read"),
        (f"{said(0.1, status=1)}\n{said(0.1, place='tmp_root')}", "unknown", "run_dir: its speed cannot be read"),
        (said(0.0), "unknown", "run_dir: its speed cannot be read"),
        ("write run_dir 0 1740327900.N 1740327901.N", "unknown", "no disk was written to"),
        ("sh: 1: dd: not found", "unknown", "no disk was written to"),
        ("", "unknown", "no disk was written to"),
    ],
)
def test_what_is_slow_is_told_and_what_is_no_answer_is_unknown(text: str, state: str, seen: str) -> None:
    found = read(text)
    assert (found.state, found.seen) == (state, seen)


def test_a_node_that_is_slow_where_others_are_not_is_bad() -> None:
    told = {node: read(said(0.05)) for node in ("n1", "n2", "n3")} | {"n4": read(said(8.0, 9.0, 8.5))}
    found = compare_disks(told)
    assert {node: verdict.state for node, verdict in found.items()} == {"n1": "ok", "n2": "ok", "n3": "ok", "n4": "bad"}
    assert found["n4"].seen == "writes to run_dir at 1.05 MB/s, others 168"


def test_a_disk_that_is_slow_for_all_is_told_and_blames_nobody() -> None:
    found = compare_disks({f"n{place}": read(said(4.0 + place)) for place in range(4)})
    assert {verdict.state for verdict in found.values()} == {"warn"}


def test_plenty_is_plenty_and_of_two_nodes_nobody_is_compared() -> None:
    quick = compare_disks({"n1": read(said(0.001)), "n2": read(said(0.001)), "n3": read(said(0.5))})
    assert {verdict.state for verdict in quick.values()} == {"ok"}
    two = compare_disks({"n1": read(said(0.001)), "n2": read(said(8.0))})
    assert [verdict.state for verdict in two.values()] == ["ok", "warn"]


@given(st.text(max_size=200))
def test_garbage_is_never_bad(text: str) -> None:
    found = compare_disks({"n1": read(text), "n2": read(said(0.1)), "n3": read(said(0.1))})
    assert found["n1"].state != "bad"
    assert read(text).state in ("unknown", "warn", "ok")
