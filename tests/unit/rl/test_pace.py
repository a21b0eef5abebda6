"""When threads of episodes rest, by a clock of the test."""

from __future__ import annotations

import pytest

from slurm_rl.rollout import pace
from slurm_rl.rollout.pace import Pace


class Clock:
    def __init__(self) -> None:
        self.now, self.slept = 100.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))


def test_readers_rest_until_the_same_moment_for_a_share_of_a_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    own = Pace()
    own.rest()
    assert not any(clock.slept), "how long replies take is not known yet"
    clock.now += 0.5
    own.count(20, 90)
    clock.now += 1.5
    own.count(30, 100)  # of 50 in two seconds, 100 in flight: 4 s each, of which a twenty-fifth
    for late in (0.03, 0.15):  # two readers, one of whom was done later
        clock.now = 320.0 + late
        own.rest()
    own.gather()
    assert clock.slept[-3:] == pytest.approx([0.13, 0.01, 0.008])


def test_where_nothing_is_in_flight_nobody_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    own = Pace()
    clock.now += 2.0
    own.count(5, 0)
    own.rest()
    assert not any(clock.slept)
