"""The schedule of a chaos storm and the evaluation of its effects, without a cluster."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.chaos import inject
from benchmarks.chaos.findings import (
    CONTROLLERS,
    Hit,
    compare,
    expected_rows,
    find_late,
    find_second_writer,
    find_surviving_seconds,
    render_table,
    seconds_to_notice,
    seconds_to_recover,
)
from benchmarks.chaos.kinds import BY_NAME, KINDS, choose_kinds
from benchmarks.chaos.light_node import advance
from benchmarks.chaos.schedule import REST_S, build_schedule, cut_piece
from benchmarks.chaos.total import render_total
from benchmarks.chaos.watch import Sign, Watch, append_signs
from slurm_rl.run_dir.run_dir import RunDir, append_event, write_json

PAGE = Path(__file__).parents[2] / "docs/reference/chaos.md"
storms = st.tuples(st.integers(0, 2**32), st.floats(10, 4000), st.floats(2, 120))


@given(storms)
def test_schedule_depends_only_on_seed(storm: tuple[int, float, float]) -> None:
    seed, seconds, every_s = storm
    faults = build_schedule(seed, seconds, every_s, KINDS)
    assert faults == build_schedule(seed, seconds, every_s, KINDS)
    for one, next_one in itertools.pairwise(faults):
        # The next fault finds the previous one recovered; one of the two leaves the run time to save.
        assert next_one.at_s >= round(one.at_s + one.lasts_s + REST_S, 1) - 0.2
        assert one.waits or next_one.waits
    for fault in faults:
        shortest, longest = BY_NAME[fault.kind].lasts_s
        assert 0 < fault.at_s <= seconds and shortest <= fault.lasts_s <= longest
        assert fault.choose(["a", "b", "c"]) in "abc"


@given(storms)
def test_kinds_occur_once_before_repeating(storm: tuple[int, float, float]) -> None:
    names = [fault.kind for fault in build_schedule(*storm, KINDS)]
    for start in range(0, len(names), len(KINDS)):
        round_of = names[start : start + len(KINDS)]
        assert len(set(round_of)) == len(round_of)


@given(storms, st.integers(1, 9))
def test_pieces_are_complete(storm: tuple[int, float, float], num_pieces: int) -> None:
    seed, seconds, every_s = storm
    faults = build_schedule(seed, seconds, every_s, KINDS)
    pieces = [cut_piece(faults, seconds, number + 1, num_pieces) for number in range(num_pieces)]
    assert [f.kind for piece in pieces for f in piece] == [f.kind for f in faults if f.at_s < seconds]
    assert all(0 <= f.at_s <= seconds / num_pieces + 0.1 for piece in pieces for f in piece)


def test_fault_kinds_have_function_and_row_in_docs() -> None:
    own = {name for name, value in vars(inject).items() if getattr(value, "__module__", "") == inject.__name__}
    functions = {name for name in own if "_" in name and name[0] != "_"}
    assert functions == {kind.name.replace("/", "_") for kind in KINDS}
    rows = {line.split("|")[1].strip() for line in PAGE.read_text().splitlines() if line.startswith("| ")}
    assert {kind.name for kind in KINDS} <= rows


def test_unsupported_faults_are_skipped() -> None:
    assert {kind.needs for kind in choose_kinds(frozenset())} == {""}
    assert set(choose_kinds(frozenset({"disk", "accounting", "demo"}))) == set(KINDS) - {BY_NAME["network/down"]}


def sign(time: float, what: str, attempt: int = 1) -> Sign:
    return Sign(time, what, attempt, {})


def test_fault_lasts_from_notice_to_next_save() -> None:
    signs = [
        sign(1.0, "attempt/started"),
        sign(5.0, "checkpoint/saved"),
        sign(12.0, "checkpoint/saved"),
        sign(13.0, "record/ending"),
        sign(15.0, "attempt/started", 2),
        sign(19.0, "checkpoint/saved", 2),
    ]
    hit = Hit(10.0, "rank/kill", "a2", 0.0)
    assert (seconds_to_notice(hit, signs), seconds_to_recover(hit, signs)) == (3.0, 9.0)
    # A restart by a later fault does not belong to this one.
    assert (seconds_to_recover(hit, signs, 15.0), seconds_to_recover(hit, signs, 15.1)) == (None, 9.0)
    assert seconds_to_notice(Hit(20.0, "rank/kill", "a2", 0.0), signs) is None
    assert find_late([hit], signs, {"process": 3.0}) == []
    assert find_late([hit], signs, {"process": 2.9}) == ["rank/kill of a2 must be seen within 2.9 s; it took 3 s"]
    # A fault without target, or one that needs no report, is never late.
    assert find_late([Hit(20.0, "rank/kill", "a2", 0.0, "no rank")], signs, {"process": 1.0}) == []
    assert find_late([Hit(20.0, "rank/stop", "a2", 5.0)], signs, {"process": 1.0}) == []
    assert find_late([Hit(20.0, "node/power", "a2", 5.0)], signs, {"node": 1.0}) != []
    # Only agents of other nodes, once they run, can report the loss of the controller's node.
    lost = Hit(20.0, "node/power", f"a1{CONTROLLERS}", 5.0)
    assert find_late([lost], signs, {"node": 20.0}) == []
    assert find_late([lost], [*signs, sign(19.5, "trainer/started", 2)], {"node": 20.0}) != []
    assert "| rank/kill | 1 | 3.0 s (3.0) | 9.0 s (9.0) |" in render_table([([hit], signs)])


@pytest.mark.parametrize(
    ("epochs", "said"),
    [
        ([], ""),
        ([1, 1, 2, 4], ""),
        ([1, 2, 1, 2], "epoch 1 wrote after epoch 2"),
        ([3, 2], "epoch 2 wrote after epoch 3"),
    ],
)
def test_second_writer_is_detected(epochs: list[int], said: str) -> None:
    assert find_second_writer(epochs) == said


def test_differing_digit_is_detected() -> None:
    rows = expected_rows(5, 2)
    assert rows[1] == {"step": 2, "stage": "grpo", **dict.fromkeys(("value/0", "value/1"), advance(1, advance(0, 0.5)))}
    assert compare(rows, expected_rows(5, 2)) == ""
    assert compare(rows[:4], rows) == "4 rows in place of 5"
    rows[3]["value/1"] += 1e-16 * 4
    assert compare(rows, expected_rows(5, 2)).startswith("row 4 is ")


def test_steps_done_twice_count_once() -> None:
    def row(step: int, seconds: float, stage: str = "grpo") -> dict[str, object]:
        return {"step": step, "seconds": seconds, "stage": stage}

    first = [row(1, 1.0), row(2, 1.0), row(2, 9.0, "save"), row(3, 1.0)]
    assert find_surviving_seconds([first, [row(3, 1.5), row(4, 1.0)]]) == (4.5, 1.0)


def test_parts_of_storm_add_up() -> None:
    end = {"what": "end", "wall_s": 100.0, "trained_s": 80.0, "redone_s": 5.0, "num_attempts": 2, "num_starts": 1}
    part = [
        {"what": "fault", "time": 11.0, "moment": 10.0, "kind": "rank/kill", "victim": "a2"},
        {"what": "fault", "time": 50.0, "kind": "rank/stop", "victim": "a2", "missed": "no rank on a2"},
        {"what": "outcome", "time": 12.0, "attempt": 1, "fields": {}},
        end,
    ]
    other = [{"what": "broken", "promise": "the run must finish"}, end | {"trained_s": 100.0}]
    told = render_total([part, other, part])
    assert "| rank/kill | 2 | 2.0 s (2.0) | - |" in told
    assert "300 s: ETTR 86.7%, of 40 s lost 15 s in steps done again; 6 attempts by 3 controllers" in told
    assert told.endswith("2 faults met nobody\nthe run must finish")


def test_watch_records_signs_once(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    watch = Watch(run)
    append_event(run, "attempt/started", attempt=1)
    run.attempt(1).logs.mkdir(parents=True)
    watch.look()
    write_json(run.attempt(1).node(0), {"state": "running"})
    append_event(run, "checkpoint/saved", step=8)
    watch.look()
    write_json(run.attempt(1).node(0), {"state": "ended"})
    write_json(run.attempt(1).outcome, {"outcome": "failed"})
    for _ in range(2):
        watch.look()
    assert [sign.what for sign in watch.signs] == ["attempt/started", "checkpoint/saved", "outcome", "record/ending"]
    append_signs(tmp_path / "log", watch.signs)
    assert len((tmp_path / "log").read_text().splitlines()) == 4
