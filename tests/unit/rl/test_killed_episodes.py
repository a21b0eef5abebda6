"""SIGKILL at a turn and at random times: real processes and environments, fake engines."""

import json
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.rollout.turn_log_format import build_histories, parse_lines
from tests.unit.rl.killed_episodes import STEPS, main

FORKS = multiprocessing.get_context("forkserver")


def fork_server(*modules: str) -> Any:
    """Return a fixture that restarts the fork server of this process with these modules."""

    @pytest.fixture(scope="module", autouse=True)
    def prepared() -> Iterator[None]:
        server: Any = forkserver._forkserver
        before = server._preload_modules
        server._stop()
        FORKS.set_forkserver_preload([*modules])
        yield
        server._stop()
        FORKS.set_forkserver_preload(before)

    return prepared


def start_fork(main: Callable[..., None], *args: object) -> BaseProcess:
    process = FORKS.Process(target=main, args=args)
    process.start()
    return process


prepared = fork_server("tests.unit.rl.killed_episodes")


def start(folder: Path, order: str, kill_at: int = 0) -> BaseProcess:
    folder.mkdir(exist_ok=True)
    return start_fork(main, folder, order, kill_at)


def end(process: BaseProcess) -> int | None:
    process.join(300)
    return process.exitcode


def read(folder: Path) -> Any:
    assert saved_step(folder) == STEPS
    return json.loads((folder / "checkpoint.json").read_text())["found"]


def saved_step(folder: Path) -> int:
    file = folder / "checkpoint.json"
    return int(json.loads(file.read_text())["step"]) if file.is_file() else 0


def asked(folder: Path) -> list[str]:
    file = folder / "asked"
    return file.read_text().splitlines() if file.is_file() else []


def kept(folder: Path) -> int:
    """Return the turns that a resumed run must not sample again."""
    step = saved_step(folder)
    histories = [
        history
        for file in (folder / "journal").glob(f"rollout-{step}-*.journal")
        for history in build_histories(parse_lines(file.read_bytes())[0], step).values()
    ]
    return sum(len(history.replies) for history in histories)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {order: tmp_path_factory.mktemp(order) for order in ("lockstep", "async")}
    for process in [start(folder, order) for order, folder in folders.items()]:
        assert end(process) == 0
    return folders


def check(folder: Path, whole: Path) -> None:
    assert read(folder) == read(whole)
    effects = [sorted(path.name for path in (it / "effects").iterdir()) for it in (folder, whole)]
    assert effects[0] == effects[1], "each call has its one effect"


@pytest.mark.parametrize("order", ["async", "lockstep"])
def test_run_killed_at_turn_resumes_to_same_tokens(tmp_path: Path, whole: dict[str, Path], order: str) -> None:
    folder = tmp_path / "run"
    num_asked = len(asked(whole[order]))
    assert end(start(folder, order, num_asked // 3)) == -9
    before, known = len(asked(folder)), kept(folder)
    first = saved_step(folder)
    assert end(start(folder, order)) == 0
    check(folder, whole[order])
    left = sum(int(line.split()[0]) >= first for line in asked(whole[order]))
    assert known > 0
    # In async order, completed turns are not requested again; lockstep order samples the whole step again.
    assert len(asked(folder)) - before == left - (known if order == "async" else 0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("order", ["async", "lockstep"])
def test_run_killed_twenty_times_resumes_to_same_tokens(tmp_path: Path, whole: dict[str, Path], order: str) -> None:
    folder, moments, kills = tmp_path / "run", random.Random(7), 0
    while kills < 20:
        process, before = start(folder, order), len(asked(folder))
        wanted = moments.randint(1, 60)
        while len(asked(folder)) < before + wanted and process.is_alive():
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.02))
        process.kill()
        kills += end(process) == -9
        if saved_step(folder) == STEPS:
            check(folder, whole[order])
            folder = tmp_path / f"run-{kills}"
    assert end(start(folder, order)) == 0
    check(folder, whole[order])
