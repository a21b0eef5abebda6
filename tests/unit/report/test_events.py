from __future__ import annotations

from slurm_rl.report.meta import describe_event, read_events, render_event
from slurm_rl.run_dir import RunDir

from .sample_run import fill


def test_a_known_kind_reads_as_words_and_details() -> None:
    event = {
        "time": 1.0,
        "kind": "attempt/ended",
        "outcome": "node lost",
        "cause": "node03 went away",
        "after_s": 1 / 3,
    }
    assert describe_event(event) == "attempt ended: outcome node lost, cause node03 went away, after_s 0.3333"


def test_an_empty_field_is_left_out() -> None:
    event = {"time": 1.0, "kind": "job/ended", "state": "finished", "cause": ""}
    assert describe_event(event) == "job ended: state finished"


def test_an_unknown_kind_is_shown_with_its_fields() -> None:
    assert describe_event({"time": 1.0, "kind": "spare/used", "node": "n7"}) == "spare/used: node n7"


def test_an_event_stays_on_one_line_whatever_its_cause_holds() -> None:
    line = render_event({"time": 0.0, "kind": "attempt/ended", "cause": "Traceback:\n  x\x1b[2J\r" + "y" * 9999})
    assert line[2] == line[5] == ":"
    assert line[9:].startswith("attempt ended: cause Traceback: x [2J yyy")
    assert line.isprintable()
    assert len(line) < 400
    assert line.endswith("…")


def test_events_of_several_nodes_come_in_order_of_time(run: RunDir) -> None:
    fill(run.events, [{"time": 2.0, "kind": "b"}, {"time": 1.0, "kind": "a"}])
    assert [event["kind"] for event in read_events(run)] == ["a", "b"]
