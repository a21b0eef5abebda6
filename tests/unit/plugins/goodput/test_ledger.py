from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_rl.plugins.goodput.ledger import build_ledger
from slurm_rl.plugins.goodput.render import render_line
from slurm_rl.plugins.goodput.types import BUCKETS, Ledger
from slurm_rl.run_dir.jsonl import Row
from tests.unit.plugins.goodput.story import Story


def read(story: Story) -> Ledger:
    ledger = build_ledger(story.events, story.steps)
    assert ledger is not None
    assert sum(ledger.buckets.values()) == pytest.approx(ledger.held_s)
    return ledger


def seconds(ledger: Ledger) -> dict[str, Any]:
    """Return the non-empty buckets as wall time of two nodes with 8 GPUs."""
    return {name: pytest.approx(value / 16) for name, value in ledger.buckets.items() if value}


def test_undisturbed_run() -> None:
    story = Story().event(0, "job/submitted").start(105, start_time=100)
    story.event(108, "preflight/passed", attempt=1, seconds=2.0).event(120, "trainer/started")
    story.rows(130, 1, 9).row(220, 5, 9, "eval").row(225, 5, 9, "save").event(230, "checkpoint/saved", step=9)
    story.event(233, "trainer/finished").end(239, "finished").event(240, "job/ended", state="finished")
    ledger = read(story)
    assert seconds(ledger) == {"gate": 2, "bring_up": 28, "trained": 90, "evaluated": 5, "saving": 5, "teardown": 10}
    assert (ledger.queue_s, ledger.held_s, ledger.charges) == (100.0, 140 * 16, ())
    assert ledger.goodput == pytest.approx(90 / 140)
    assert ledger.ettr == pytest.approx(90 / 240)


def saved(step: int, last: int) -> Story:
    """Return a run with steps of 10 s until the last one, and a checkpoint at second 30."""
    return Story().start(0).rows(10, 1, last).event(30, "checkpoint/saved", step=step)


@pytest.mark.parametrize(
    ("story", "buckets"),
    [
        # A hang is charged until its detection.
        (
            saved(step=2, last=2).event(90, "rank/hung", rank=3).end(95, "failed"),
            {"trained": 20, "hung": 60, "teardown": 5},
        ),
        # The engines start after the warm-up.
        (
            Story().start(0).row(10, 10, 1, "warmup").row(35, 5, 1, "eval").row(40, 10, 2).end(50, "finished"),
            {"trained": 20, "evaluated": 5, "bring_up": 25},
        ),
        # Steps of a run that died count up to its checkpoint; those of an active one up to the last event.
        (saved(step=3, last=5).end(60, "failed"), {"trained": 30, "redone": 20}),
        (saved(step=3, last=5), {"trained": 50}),
    ],
)
def test_seconds_are_in_their_buckets(story: Story, buckets: dict[str, float]) -> None:
    assert seconds(read(story)) == {"bring_up": 10} | buckets


def test_lost_node_is_charged_for_repeated_steps_and_bring_up() -> None:
    story = Story().start(0).rows(10, 1, 5).row(60, 2, 5, "save").event(62, "checkpoint/saved", step=5)
    story.rows(62, 6, 8).event(95, "node/died", cause="n2: task 1: Killed").event(99, "nodes/lost", hosts=["n2"])
    story.end(100, "lost").start(101).event(105, "preflight/passed", attempt=2, seconds=3.0)
    story.event(110, "trainer/resumed", step=5).rows(120, 6, 10).end(175, "finished").event(176, "job/ended")
    ledger = read(story)
    assert seconds(ledger) == (
        {"trained": 50 + 50, "bring_up": 10 + 16, "gate": 3, "saving": 2, "redone": 30, "cut": 3, "teardown": 6 + 6}
    )
    [charge] = ledger.charges
    assert (charge.cause.kind, charge.cause.name, charge.attempts) == ("node", "n2", 1)
    assert {k: v / 16 for k, v in charge.buckets.items()} == {"redone": 30, "cut": 3, "bring_up": 16, "gate": 3}


def test_time_limit_is_charged_for_cut_step_and_start_not_queue() -> None:
    story = Story().start(0, queued_since=-50, start_time=0).rows(10, 1, 3)
    # A stop in the fourth step: the step is unfinished, the save after it is complete.
    story.event(44, "job/stop_raised", lead_s=20).row(46, 4, 3, "save").event(50, "checkpoint/saved", step=3)
    story.end(52, "checkpointed", stopped_by="scheduler").event(53, "job/requeued")
    story.start(205, restarts=1, start_time=200, queued_since=54).event(206, "trainer/resumed", step=3)
    story.rows(210, 4, 6).end(241, "finished")
    ledger = read(story)
    assert seconds(ledger) == {"trained": 60, "bring_up": 20, "cut": 6, "saving": 4, "teardown": 4 + 1}
    assert [charge.cause.kind for charge in ledger.charges] == ["limit"]
    assert ledger.charges[0].seconds / 16 == pytest.approx(6 + 10)
    assert ledger.queue_s == pytest.approx(200 - 54)
    assert ledger.held_s / 16 == pytest.approx(54 + 41)


def test_killed_controller_held_nodes_until_slurm_released_them() -> None:
    story = Story().start(0).rows(10, 1, 4).event(30, "checkpoint/saved", step=2)
    # The next controller writes the end of this attempt.
    story.event(300, "attempt/ended", attempt=1, outcome="lost", cause="its controller was killed")
    story.start(301, restarts=1, start_time=299, queued_since=80)
    story.event(305, "trainer/resumed", step=2).rows(310, 3, 4).end(330, "finished")
    ledger = read(story)
    assert seconds(ledger) == {"trained": 20 + 20, "redone": 20, "cut": 30, "bring_up": 10 + 11}
    assert ledger.held_s / 16 == pytest.approx(80 + 31)
    assert [(c.cause.kind, c.cause.reason, c.attempts) for c in ledger.charges] == [("requeue", "no warning", 1)]


def test_unavailable_node_of_next_start_is_named() -> None:
    story = Story().start(0).rows(10, 1, 2).event(100, "attempt/ended", attempt=1, outcome="lost", hosts=["n3"])
    story.start(101, restarts=1, start_time=100, queued_since=60).rows(110, 1, 2).end(130, "finished")
    ledger = read(story)
    assert [(c.cause.kind, c.cause.name) for c in ledger.charges] == [("node", "n3")]
    assert ledger.held_s / 16 == 60 + 30


def test_end_causes_are_distinguished() -> None:
    def cause_of(restarts: int, job: str, **fields: Any) -> str:
        story = Story().start(0).rows(0, 1, 1).end(20, "checkpointed", **fields)
        story.start(30, job=job, restarts=restarts).rows(30, 2, 2).end(50, "finished")
        return read(story).charges[0].cause.kind

    assert cause_of(1, "7", stopped_by="user") == "requeue"
    assert cause_of(0, "8", stopped_by="user") == "user"
    assert cause_of(1, "7", stopped_by="scheduler") == "preemption"
    assert cause_of(0, "7", cause="loss is nan") == "program"


def test_attempt_that_dies_in_bring_up_is_charged_once() -> None:
    story = Story().start(0).rows(10, 1, 4).event(50, "checkpoint/saved", step=2)
    story.event(50, "nodes/lost", hosts=["n1"]).end(55, "lost")
    story.start(56).event(60, "nodes/lost", hosts=["n3"]).end(70, "lost")
    story.start(71).event(75, "trainer/resumed", step=2).rows(80, 3, 4).end(100, "finished")
    charges = {charge.cause.name: charge.buckets for charge in read(story).charges}
    assert {k: v / 16 for k, v in charges["n1"].items()} == {"redone": 20}
    # All of the second attempt, and the bring-up of the third.
    assert {k: v / 16 for k, v in charges["n3"].items()} == {"bring_up": 14 + 9}


def test_spare_nodes_are_spare_all_the_time() -> None:
    story = Story(nodes=3, gpus=24, spare=8).start(0).rows(10, 1, 3).end(50, "finished")
    assert read(story).buckets["spare"] == 8 * 50
    assert read(story).buckets["trained"] == 16 * 30


def test_resume_after_week_counts_no_queue() -> None:
    story = Story().start(0).rows(0, 1, 1).end(10, "failed").event(604_800, "job/submitted")
    story.start(604_860, job="8").rows(604_860, 2, 3).end(604_880, "finished")
    assert read(story).queue_s == 60
    assert read(story).held_s / 16 == 30


def test_run_of_earlier_version_states_unknown_values() -> None:
    story = Story().start(0).event(20, "trainer/started").event(50, "checkpoint/saved", step=5).end(60, "finished")
    ledger = read(story)
    assert (ledger.goodput, ledger.ettr) == (None, None)
    assert "no step times of attempt 1" in render_line(ledger)
    assert ledger.buckets["bring_up"] / 16 == 20
    assert build_ledger([], {}) is None


KINDS = ["job/submitted", "attempt/started", "attempt/ended", "preflight/passed", "trainer/started", "trainer/resumed"]
KINDS += ["checkpoint/saved", "nodes/lost", "node/died", "rank/hung", "job/ended", "job/stop_raised", "trainer/crashed"]
TIMES = st.floats(0, 1000)
EVENTS = st.fixed_dictionaries(
    {"time": TIMES, "kind": st.sampled_from(KINDS)},
    optional={
        "attempt": st.integers(1, 4),
        "job": st.sampled_from("ab"),
        "slurm_restarts": st.integers(0, 2),
        "start_time": TIMES,
        "queued_since": TIMES,
        "gpus": st.integers(0, 16),
        "nodes": st.one_of(st.integers(0, 4), st.lists(st.just("n1"), max_size=2)),
        "spare": st.integers(0, 20),
        "step": st.integers(0, 9),
        "seconds": TIMES,
        "outcome": st.sampled_from(["finished", "checkpointed", "failed", "lost"]),
        "stopped_by": st.sampled_from(["user", "scheduler", "limit"]),
        "hosts": st.just(["n1"]),
        "cause": st.just("n1: gone"),
    },
)
ROWS = st.fixed_dictionaries(
    {
        "step": st.integers(0, 9),
        "stage": st.sampled_from(["grpo", "warmup", "eval", "save"]),
        "start": TIMES,
        "seconds": st.floats(-5, 200),
        "phases": st.just({"train": 1.0}),
    }
)


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENTS, max_size=25), st.dictionaries(st.integers(1, 4), st.lists(ROWS, max_size=8), max_size=4))
def test_held_seconds_are_in_one_bucket_for_any_events(events: list[Row], steps: dict[int, list[Row]]) -> None:
    ledger = build_ledger(events, steps)
    if ledger is None:
        return
    assert set(ledger.buckets) == set(BUCKETS)
    assert all(value >= 0 for value in ledger.buckets.values())
    assert sum(ledger.buckets.values()) == pytest.approx(ledger.held_s)
    assert ledger.queue_s >= 0
    charged = sum(charge.seconds for charge in ledger.charges)
    assert charged <= ledger.held_s * (1 + 1e-9) + 1e-6
    assert render_line(ledger)
