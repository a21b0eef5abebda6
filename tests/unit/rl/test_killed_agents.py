"""SIGKILL of runs with agent programs: real processes and requests, fake engines."""

import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.rollout.turn_log_format import History, build_histories, parse_lines
from tests.unit.rl.killed_agents import STEPS, main
from tests.unit.rl.test_killed_episodes import asked, end, fork_server, kept, read, saved_step, start_fork

KINDS = ("once", "stays", "adapter")
PER_STEP = {"once": 48, "stays": 48, "ahead": 48, "adapter": 24}
"""Replies per step."""


prepared = fork_server("tests.unit.rl.killed_agents")


def start(folder: Path, kind: str, kill_at: int = 0) -> BaseProcess:
    folder.mkdir(exist_ok=True)
    return start_fork(main, folder, kind, kill_at)


def effects(folder: Path, what: str) -> Counter[str]:
    """Count each effect by episode."""
    rows = [line.split() for line in (folder / "effects").read_text().splitlines()]
    return Counter(name for name, done in rows if done == what)


def left(folder: Path) -> dict[str, History]:
    """Return the recorded turns of the step that a killed run resumes, by episode."""
    step = saved_step(folder)
    return {
        f"{step + 100}.{place}.{member}": history
        for file in (folder / "journal").glob(f"rollout-{step}-*.journal")
        for (place, member), history in build_histories(parse_lines(file.read_bytes())[0], step).items()
    }


def events(folder: Path) -> list[dict[str, Any]]:
    file = folder / "events"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return uninterrupted runs by kind."""

    @cache
    def find(kind: str) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        assert end(start(folder, kind)) == 0
        assert len(asked(folder)) == STEPS * PER_STEP[kind]
        return folder

    return find


def finish(folder: Path, kind: str, whole: Callable[[str], Path]) -> None:
    """Resume a killed run to its end, and check that nothing is lost, changed or repeated."""
    before, first, known, histories = len(asked(folder)), saved_step(folder), kept(folder), left(folder)
    began = effects(folder, "began") if (folder / "effects").is_file() else Counter()
    assert end(start(folder, kind)) == 0
    assert read(folder) == read(whole(kind))
    assert len(asked(folder)) - before == (STEPS - first) * PER_STEP[kind] - known
    assert not [row for row in events(folder) if row["kind"] == "journal/program_changed"]
    if kind != "adapter":
        over = [name for name, history in histories.items() if history.end is not None]
        assert all(effects(folder, "began")[name] == began[name] for name in over)


@pytest.mark.parametrize("kind", KINDS)
def test_agents_killed_in_turn_resume_to_same_tokens(tmp_path: Path, whole: Callable[[str], Path], kind: str) -> None:
    folder = tmp_path / "run"
    assert end(start(folder, kind, PER_STEP[kind] * 2 // 3)) == -9
    assert kept(folder) > 0
    finish(folder, kind, whole)


def test_resume_does_not_score_agent_twice(tmp_path: Path, whole: Callable[[str], Path]) -> None:
    """The run is killed in its second step: the weights of the first step were saved, those of the second were not."""
    folder = tmp_path / "run"
    assert end(start(folder, "stays", PER_STEP["stays"] + 20)) == -9
    assert kept(folder) == PER_STEP["stays"] and all(one.end is not None for one in left(folder).values())
    judged = (folder / "judged").read_text()
    assert len(judged.splitlines()) == 2
    finish(folder, "stays", whole)
    assert len((folder / "judged").read_text().splitlines()) == 2 * STEPS, "each once"


def test_changed_agent_is_resampled_from_change(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert end(start(folder, "once", 40)) == -9
    histories, before = left(folder), len(asked(folder))
    over = [one for one in histories.values() if one.end is not None]
    others = [one for one in histories.values() if one.end is None]
    (folder / "changed").touch()
    assert end(start(folder, "once")) == 0
    # The first request, and the last one, which starts its own dialogue, are unchanged.
    news = [[asked["new"][0]["content"] for asked in one.asked] for one in others]
    same = sum(new == "sum up" or at == 0 for contents in news for at, new in enumerate(contents))
    dropped = sum(map(len, news)) - same
    assert dropped > 0
    told = [row for row in events(folder) if row["kind"] == "journal/program_changed"]
    assert [(row["batch"], row["replies"]) for row in told] == [("rollout-0", dropped)]
    recorded = sum(len(one.replies) for one in over) + same
    assert len(asked(folder)) - before == STEPS * PER_STEP["once"] - recorded


@pytest.mark.parametrize("kill_at", [pytest.param(70, marks=pytest.mark.slow), 2 * 48 + 70])
def test_weights_wait_for_agents_of_next_batch(tmp_path: Path, whole: Callable[[str], Path], kill_at: int) -> None:
    """Each batch comes from one policy, and its saved or journaled part is not sampled again."""
    folder = tmp_path / "run"
    assert end(start(folder, "ahead", kill_at)) == -9
    before, saved = len(asked(folder)), saved_step(folder)
    files = [(file, int(file.stem.split("-")[1])) for file in (folder / "journal").glob("rollout-*")]
    ahead = [(file, step) for file, step in files if saved < step <= saved + 1 or step == saved == 0]
    known = sum(
        len(history.replies)
        for file, _ in ahead
        for history in build_histories(parse_lines(file.read_bytes())[0], saved).values()
    )
    assert known > 0 and end(start(folder, "ahead")) == 0
    assert read(folder) == read(whole("ahead"))
    versions = [[one[2] for group in groups for one in group[:2]] for groups in read(folder)]
    assert [set(found) for found in versions] == [{0}, {0}, {1}, {2}]
    # The checkpoint's batch is complete.
    left_steps = STEPS - saved - (saved > 0)
    assert len(asked(folder)) - before == left_steps * PER_STEP["ahead"] - known


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_run_killed_in_every_turn_resumes_to_same_tokens(
    tmp_path: Path, whole: Callable[[str], Path], kind: str
) -> None:
    for at in range(1, PER_STEP[kind] * 3 // 2, 6):
        folder = tmp_path / f"run-{at}"
        assert end(start(folder, kind, at)) == -9
        finish(folder, kind, whole)
