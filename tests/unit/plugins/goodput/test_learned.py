from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.launch.controller import watch as job_limit
from slurm_rl.launch.controller.watch import LimitWatch
from slurm_rl.plugins.goodput.measure_saves import learn, measure, percentile_of_rest
from slurm_rl.run_dir.jsonl import append_row, read_rows
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.run_dir.save_times import FIRST_EVERY, Measured, choose_every, daly_s, lead_in_force, read_learned
from slurm_rl.trainers.common.cadence import Cadence
from tests.unit.plugins.goodput.story import Story

TIME = st.floats(1e-3, 1e5)


def write_saves(run: RunDir, *seconds: float) -> None:
    for one in seconds:
        append_row(run.events, {"time": 1.0, "kind": "checkpoint/saved", "step": 1, "seconds": one})


def test_averages_cover_all_attempts() -> None:
    story = Story().start(0).rows(10, 1, 5).event(60, "checkpoint/saved", step=5, seconds=7.0).end(86_400, "lost")
    story.start(86_400).rows(86_410, 6, 9).event(86_500, "checkpoint/saved", step=9, seconds=9.0).end(
        172_800, "finished"
    )
    measured = measure(story.events, story.steps)
    assert (measured.num_saves, measured.save_s, measured.ends) == (2, 9.0, 1)
    # Two nodes for two days; with steps of 10 s, the rest is below 9.5 s in 95 % of cases.
    assert (measured.node_days, measured.rest_s) == (pytest.approx(4.0), pytest.approx(9.5))
    assert measured.lead_s == 9.5 + 9 + 80 + 0.5


@given(st.lists(TIME, min_size=1, max_size=20))
def test_remaining_time_is_within_longest(durations: list[float]) -> None:
    assert 0 <= percentile_of_rest(durations, 0.95) <= max(durations) + 1e-6


@given(TIME, TIME, TIME, st.floats(1.0, 1e8), st.one_of(st.none(), st.floats(60, 1e6)), st.integers(1, 10_000))
def test_interval_stays_within_bounds(
    step_s: float, stall_s: float, write_s: float, mean_time_s: float, limit_s: float | None, before: int
) -> None:
    times: dict[str, Any] = {"step_s": step_s, "stall_s": stall_s, "write_s": write_s, "mean_time_s": mean_time_s}
    every = choose_every(before, **times, limit_s=limit_s)
    assert every >= 1
    if every != before:
        assert max(every / before, before / every) > 1.3
        # At least one write, at most an hour and a sixth of the limit; whole steps.
        assert (every + 1) * step_s >= write_s
        assert (every - 1) * step_s <= max(write_s, min(3600.0, (limit_s or 1e9) / 6))
    assert choose_every(every, **times, limit_s=limit_s) == every


def test_learned_cadence_follows_save_times() -> None:
    cadence = Cadence(None, Measured(), 2, None)
    assert [step for step in range(25) if cadence.is_due(step)][:2] == [0, FIRST_EVERY]
    times: Any = SimpleNamespace(recent=lambda *, save: [0.5, 0.5, 0.5] if save else [1.0, 1.0])
    cadence.saved(10, times)
    expected = round(daly_s(0.5, Measured().mean_time_s(2)))
    assert cadence.every == expected > 30
    assert not cadence.is_due(10 + expected - 1) and cadence.is_due(10 + expected)
    cadence.resume(1000)
    assert not cadence.is_due(1001)


def test_fixed_cadence_is_constant() -> None:
    cadence = Cadence(7, Measured(), 2, None)
    times: Any = SimpleNamespace(recent=lambda *, save: [100.0] * 5)
    for step in (7, 9, 14):
        cadence.saved(step, times)
    assert [step for step in range(30) if cadence.is_due(step)] == [0, 7, 14, 21, 28]


def test_lead_grows_with_saves_and_is_kept(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert lead_in_force(run, 120, learns=True) == 120
    write_saves(run, 200.0)
    learn(run)
    assert lead_in_force(run, 120, learns=True) == 120, "one save is no measurement"
    write_saves(run, 300.0)
    learn(run)
    assert (lead_in_force(run, 120, learns=True), lead_in_force(run, 120, learns=False)) == (380, 120)
    run.learned.write_text('{"another": "version"}')
    assert read_learned(run) == Measured()


class Allocation:
    """A scheduler that returns the job's end and counts calls."""

    def __init__(self, ends_at: float, *, signals_limit: bool) -> None:
        self.end, self.signals_limit, self.asked = ends_at, signals_limit, 0

    def ends_at(self) -> float:
        self.asked += 1
        return self.end


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a fake for both clocks."""
    clock = SimpleNamespace(now=1000.0)
    fake = SimpleNamespace(time=lambda: clock.now, monotonic=lambda: clock.now)
    monkeypatch.setattr(job_limit, "time", fake)
    return clock


def watch(run: RunDir, allocation: Allocation, *, learns: bool) -> LimitWatch:
    plan: Any = SimpleNamespace(limits=SimpleNamespace(checkpoint_lead_s=120, learns_lead=learns))
    of_run: Any = allocation
    return LimitWatch(run, plan, of_run)


def test_controller_raises_stop_when_saves_need_more_than_net(tmp_path: Path, clock: Any) -> None:
    run, allocation = RunDir(tmp_path), Allocation(10_000.0, signals_limit=True)
    limit = watch(run, allocation, learns=True)
    clock.now = 9500.0
    assert limit.look() is None
    assert allocation.asked == 0, "the scheduler's own signal is early enough"
    write_saves(run, 300.0, 300.0)
    clock.now = 9590.0
    assert limit.look() is None
    clock.now = 9621.0
    assert limit.look() == "job.time_limit is near"
    [raised] = [row for row in read_rows(run.events) if row["kind"] == "job/stop_raised"]
    assert (raised["lead_s"], raised["measured"]["save_s"]) == (380, 300.0)


def test_extended_limit_is_detected_before_stop(tmp_path: Path, clock: Any) -> None:
    run, allocation = RunDir(tmp_path), Allocation(2000.0, signals_limit=False)
    limit = watch(run, allocation, learns=False)
    assert limit.look() is None
    clock.now, allocation.end = 1881.0, 5000.0
    assert limit.look() is None
    clock.now = 4881.0
    assert limit.look() == "job.time_limit is near"
