import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_rl.node import heartbeat
from slurm_rl.node.heartbeat import HEARTBEATS, Heartbeat, with_heartbeat
from slurm_rl.node.stall_detector import Beat, deadline_of, find_late, find_stragglers, read_beats


@pytest.fixture
def own(tmp_path: Path) -> Heartbeat:
    return Heartbeat(tmp_path, "rank-0")


def read_one(folder: Path, later: float = 0.0) -> Beat:
    [beat] = read_beats(folder, time.monotonic() + later)
    return beat


def test_heartbeat_shows_innermost_phase_of_threads(own: Heartbeat, tmp_path: Path) -> None:
    assert read_one(tmp_path).phase == ""
    with own.phase("step"):
        with own.phase("train"):
            beat = read_one(tmp_path, later=100.0)
            assert (beat.name, beat.pid, beat.phase) == ("rank-0", os.getpid(), "train")
            assert 100.0 <= beat.age_s < 160.0
        assert read_one(tmp_path).phase == "step"
        other_thread = own.phase("step")
        other_thread.__enter__()
    assert read_one(tmp_path).phase == "step"
    other_thread.__exit__(None, None, None)
    assert read_one(tmp_path).phase == ""
    if (pid := os.fork()) == 0:
        with own.phase("forked"):
            os._exit(0)
    os.waitpid(pid, 0)
    assert read_one(tmp_path).phase == "", "a child does not write its parent's heartbeat"


def test_heartbeat_measures_intervals_by_phase(own: Heartbeat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: clock[0])
    for seconds in (1.0, 3.0, 2.0):
        with own.phase("train"):
            clock[0] += seconds
            own.beat()
            clock[0] += 0.5
    clock[0] += 500.0  # waits do not count
    with own.phase("train"):
        [beat] = read_beats(tmp_path, clock[0])
    assert (beat.num_calls, beat.longest_s) == (3, 3.0)


def test_stack_dump_is_enabled_in_forked_child(own: Heartbeat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's worker is forked or spawned; if it is the actor's own process, it has a heartbeat already."""
    monkeypatch.setenv(HEARTBEATS, str(tmp_path))
    monkeypatch.setattr(heartbeat, "_own", own)
    assert heartbeat.enable_stack_dump("rank-0.worker-1") is None
    with own.phase("generate"):
        if (pid := os.fork()) == 0:
            os._exit(0 if heartbeat.enable_stack_dump("rank-0.worker-1") else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        beats = read_beats(tmp_path, time.monotonic())
    phases = {beat.name: beat.phase for beat in beats}
    assert phases == {"rank-0": "generate", "rank-0.worker-1": ""}


def test_read_beats_skips_incomplete_files(own: Heartbeat, tmp_path: Path) -> None:
    text = (tmp_path / "rank-0.json").read_text()
    assert len(text) == 1024 and text.endswith("\n")
    for number, part in enumerate((text[:50], "", "[1]", "{}", "\0" * 100), start=1):
        (tmp_path / f"rank-{number}.json").write_text(part)
    assert [beat.name for beat in read_beats(tmp_path, 0.0)] == ["rank-0"]


class Adder:
    def __init__(self, base: int) -> None:
        self.base = base

    def add(self, number: int) -> int:
        self._seen = json.loads((Path(os.environ[HEARTBEATS]) / "adder-0.json").read_text())["phase"]
        return self.base + number


def test_with_heartbeat_survives_pickling_by_ray(tmp_path: Path) -> None:
    from ray import cloudpickle

    code = (
        "import sys; from ray import cloudpickle; adder = cloudpickle.loads(sys.stdin.buffer.read())(1)\n"
        "print(type(adder).__name__, adder.add(2), repr(adder._seen))"
    )
    env, root = {**os.environ, HEARTBEATS: str(tmp_path)}, Path(__file__).parents[3]
    sent = cloudpickle.dumps(with_heartbeat(Adder, "adder-0"))
    done = subprocess.run([sys.executable, "-c", code], input=sent, env=env, cwd=root, capture_output=True, timeout=120)
    assert done.stdout.split() == [b"Adder", b"3", b"'add'"], done.stderr.decode()
    assert pickle.loads(pickle.dumps(Adder)) is Adder


def test_phase_without_agent_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HEARTBEATS, raising=False)
    heartbeat.start_heartbeat("rank-0")
    with heartbeat.phase("train"):
        heartbeat.beat()
    assert heartbeat.process_name() == ""


def test_heartbeat_takes_microseconds(own: Heartbeat) -> None:
    """12 phases with 60 beats take about 200 microseconds; the bound is ten times higher."""
    seconds = []
    for _ in range(200):
        start = time.perf_counter()
        for _ in range(12):
            with own.phase("train"):
                for _ in range(5):
                    own.beat()
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 2e-3


@pytest.mark.parametrize(
    ("calls", "longest", "deadline"),
    [(0, 0.0, 3600.0), (4, 1.0, 3600.0), (5, 1.0, 60.0), (5, 12.1, 60.5), (9, 100.0, 500.0), (9, 1e4, 3600.0)],
)
def test_deadline_is_five_times_longest_interval(calls: int, longest: float, deadline: float) -> None:
    assert deadline_of(calls, longest, 60.0, 3600.0) == pytest.approx(deadline)


def test_find_late_ignores_waits_saves_and_driver() -> None:
    names = [("rank-0", ""), ("rank-1", "save"), ("rank-2", "train"), ("driver", "rollout"), ("driver", "train")]
    beats = [Beat(name, 1, phase, age_s=1e6, num_calls=9, longest_s=1.0) for name, phase in names]
    late = [(one.name, one.phase, one.deadline_s) for one in find_late(beats, "n1", 60.0, 3600.0)]
    assert late == [("rank-2", "train", 60.0), ("driver", "train", 60.0)]


USUAL, SLOW, ONCE_FAST = (1.0, 1.1, 1.0, 1.2, 1.0), (1.5, 1.6, 1.5, 1.4, 9.0), (9.0, 9.0, 9.0, 9.0, 1.0)


@pytest.mark.parametrize(
    ("speeds", "stragglers"),
    [
        ({"policy-0": USUAL, "policy-1": SLOW}, {"policy-1": 0.714}),
        ({"policy-0": USUAL, "policy-1": ONCE_FAST}, {}),  # its work differs, not its speed
        ({"policy-0": USUAL, "policy-1": SLOW[:4]}, {}),  # too few steps
        ({"policy-0": USUAL, "critic-0": SLOW}, {}),  # different work
        ({}, {}),
    ],
)
def test_find_stragglers_compares_ranks_of_one_role(
    speeds: dict[str, tuple[float, ...]], stragglers: dict[str, float]
) -> None:
    assert find_stragglers([Beat(name, 1, "", 0.0, speeds=one) for name, one in speeds.items()]) == stragglers
