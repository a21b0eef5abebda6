"""Beats of a process, as its agent reads them; deadlines and slow ranks from them."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from slurm_rl.node.beats import pulse
from slurm_rl.node.beats.judge import Beat, find_deadline, find_overdue, find_stragglers, is_judged, parse_beat
from slurm_rl.node.beats.pulse import BEATS, Pulse, beating
from slurm_rl.node.hang import read_beats


@pytest.fixture
def own(tmp_path: Path) -> Pulse:
    return Pulse(tmp_path, "rank-0")


def read_one(folder: Path, later: float = 0.0) -> Beat:
    [beat] = read_beats(folder, time.monotonic() + later)
    return beat


def test_a_phase_is_told_until_it_is_left(own: Pulse, tmp_path: Path) -> None:
    assert read_one(tmp_path).phase == ""
    own.enter("step")
    own.enter("train")
    beat = read_one(tmp_path, later=100.0)
    assert (beat.name, beat.pid, beat.phase) == ("rank-0", os.getpid(), "train")
    assert 100.0 <= beat.age_s < 160.0
    own.leave("train")
    assert read_one(tmp_path).phase == "step"
    own.leave("step")
    assert not is_judged(read_one(tmp_path))


def test_the_longest_silence_of_a_phase_is_its_own(own: Pulse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(pulse.time, "monotonic", lambda: clock[0])
    for seconds in (1.0, 3.0, 2.0):
        own.enter("train")
        clock[0] += seconds
        own.tick()
        clock[0] += 0.5
        own.leave("train")
    clock[0] += 500.0  # waiting for others is no part of it
    own.enter("train")
    [beat] = read_beats(tmp_path, clock[0])
    assert (beat.num_calls, beat.longest_s) == (3, 3.0)


def test_two_threads_in_one_phase_leave_it_once_each(own: Pulse, tmp_path: Path) -> None:
    threads = [threading.Thread(target=own.enter, args=("generate",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    own.leave("generate")
    assert read_one(tmp_path).phase == "generate"
    own.leave("generate")
    assert read_one(tmp_path).phase == ""


def test_a_child_that_was_forked_does_not_write_for_its_parent(own: Pulse, tmp_path: Path) -> None:
    before = read_one(tmp_path)
    if (pid := os.fork()) == 0:
        own.enter("forked")
        os._exit(0)
    os.waitpid(pid, 0)
    assert read_one(tmp_path).phase == before.phase == ""


def test_a_line_that_is_being_written_is_no_beat(tmp_path: Path) -> None:
    Pulse(tmp_path, "rank-0")
    whole = (tmp_path / "rank-0.json").read_text()
    assert len(whole) == 1024 and whole.endswith("\n")
    assert parse_beat(whole[:50], 0.0) is None and parse_beat("", 0.0) is None and parse_beat("[1]", 0.0) is None
    (tmp_path / "rank-1.json").write_text("\0" * 100)
    assert [beat.name for beat in read_beats(tmp_path, 0.0)] == ["rank-0"]


class Adder:
    def __init__(self, base: int) -> None:
        self.base = base

    def add(self, number: int) -> int:
        self._seen = json.loads((Path(os.environ[BEATS]) / "adder-0.json").read_text())["phase"]
        return self.base + number


def test_a_class_beats_in_each_public_method(tmp_path: Path) -> None:
    """In a process of its own, as Ray starts it: what is sent there is the class by value."""
    code = (
        "import sys; from ray import cloudpickle; adder = cloudpickle.loads(sys.stdin.buffer.read())(1)\n"
        "print(type(adder).__name__, adder.add(2), repr(adder._seen))"
    )
    from ray import cloudpickle

    env = {**os.environ, BEATS: str(tmp_path)}
    root = Path(__file__).parents[4]
    sent = cloudpickle.dumps(beating(Adder, "adder-0"))
    done = subprocess.run([sys.executable, "-c", code], input=sent, env=env, cwd=root, capture_output=True, timeout=120)
    assert done.stdout.split() == [b"Adder", b"3", b"'add'"], done.stderr.decode()
    assert pickle.loads(pickle.dumps(Adder)) is Adder


def test_without_an_agent_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BEATS, raising=False)
    assert pulse.start_pulse("rank-0") is None
    with pulse.phase("train"):
        pulse.tick()


def test_a_beat_costs_less_than_a_thousandth_of_the_demos_step(own: Pulse) -> None:
    """The shortest of many rounds, an order of magnitude from the bound: 12 phases and 60 ticks in 200 microseconds."""

    def one_step() -> float:
        start = time.perf_counter()
        for _ in range(12):
            own.enter("train")
            for _ in range(5):
                own.tick()
            own.leave("train")
        return time.perf_counter() - start

    assert min(one_step() for _ in range(200)) < 2e-3


@pytest.mark.parametrize(
    ("calls", "longest", "deadline"),
    [(0, 0.0, 3600.0), (4, 1.0, 3600.0), (5, 1.0, 60.0), (5, 12.1, 60.5), (9, 100.0, 500.0), (9, 1e4, 3600.0)],
)
def test_the_deadline_is_five_times_the_longest_within_its_bounds(calls: int, longest: float, deadline: float) -> None:
    assert find_deadline(calls, longest, 60.0, 3600.0) == pytest.approx(deadline)


def test_who_waits_saves_or_drives_is_not_late() -> None:
    silent = {"age_s": 1e6, "num_calls": 9, "longest_s": 1.0}
    names = [("rank-0", ""), ("rank-1", "save"), ("rank-2", "train"), ("driver", "rollout"), ("driver", "train")]
    beats = [Beat(name, 1, phase, **silent) for name, phase in names]
    late = find_overdue(beats, 60.0, 3600.0)
    assert [(beat.name, beat.phase, at) for beat, at in late] == [("rank-2", "train", 60.0), ("driver", "train", 60.0)]


def test_the_slow_rank_of_two_and_of_many_is_named_and_no_other() -> None:
    def speeds(*seconds: float) -> tuple[float, ...]:
        return tuple(seconds)

    def ranks(role: str, *each: tuple[float, ...]) -> list[Beat]:
        return [Beat(f"{role}-{n}", n, "", 0.0, speeds=one) for n, one in enumerate(each)]

    usual, slow = speeds(1.0, 1.1, 1.0, 1.2, 1.0), speeds(1.5, 1.6, 1.5, 1.4, 9.0)
    assert find_stragglers(ranks("policy", usual, slow)) == {"policy-1": 0.714}
    assert find_stragglers(ranks("policy", usual, usual, usual, slow, usual)) == {"policy-3": 0.714}
    once = speeds(9.0, 9.0, 9.0, 9.0, 1.0)  # fast in one of five: its work differs, not its speed
    assert find_stragglers(ranks("policy", usual, once)) == {}
    assert find_stragglers(ranks("policy", usual, slow[:4])) == {}, "five steps, or nothing is said"
    assert find_stragglers(ranks("policy", usual) + ranks("critic", slow)) == {}, "other work"
    assert find_stragglers([]) == {}


def test_a_child_of_an_engine_listens_beside_it(own: Pulse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's worker is forked or spawned; where it is the actor's own process, that beats already."""
    monkeypatch.setenv(BEATS, str(tmp_path))
    monkeypatch.setattr(pulse, "_own", own)
    assert pulse.listen("rank-0.worker-1") is None
    own.enter("generate")
    if (pid := os.fork()) == 0:
        os._exit(0 if pulse.listen("rank-0.worker-1") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    phases = {beat.name: beat.phase for beat in read_beats(tmp_path, time.monotonic())}
    assert phases == {"rank-0": "generate", "rank-0.worker-1": ""}
