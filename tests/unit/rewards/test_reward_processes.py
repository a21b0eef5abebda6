import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from slurm_rl.config.reward import RewardConfig
from slurm_rl.errors import RewardError
from slurm_rl.rewards.pool import RewardPool
from tests.unit.rewards.reward_pool_kit import build_items, build_pool, workers


@pytest.mark.parametrize("pause_s", [0.0, 0.5])
def test_dead_idle_workers_are_replaced(pause_s: float) -> None:
    """The kernel's OOM killer does this; pebble then breaks the pool, before or after the next call."""
    with build_pool() as pool:
        for process in workers():
            # pebble kills the other workers when it notices the first death, which may happen between these two.
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        time.sleep(pause_s)
        assert [r.value for r in pool.score(build_items(200, {}))] == [i / 1000 for i in range(200)]
        assert len(workers()) == 2


def test_workers_start_and_end_with_pool() -> None:
    before = set(workers())
    with build_pool(num_workers=3):
        assert len(set(workers()) - before) == 3
    assert set(workers()) == before


def test_leaving_in_middle_of_hang_leaves_no_process() -> None:
    before = set(workers())

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), build_pool(timeout_s=60) as pool:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            pool.score(build_items(2, {0: "hang", 1: "hang without sigterm"}))
    finally:
        signal.signal(signal.SIGALRM, old)
    assert set(workers()) == before


def test_unimportable_verifier_is_named() -> None:
    before = set(workers())
    table: dict[str, str] = {"arithmetic": "no_such_module:f"}
    with pytest.raises(RewardError, match=r"arithmetic \(no_such_module:f\): ModuleNotFoundError"):
        RewardPool(RewardConfig(verifiers={"arithmetic": 1.0}), table).__enter__()
    assert set(workers()) == before


def test_slow_start_times_out() -> None:
    before = set(workers())
    with pytest.raises(RewardError, match=r"1 reward workers must be up within 0\.2 s; got 0 up"):
        RewardPool(
            RewardConfig(start_timeout_s=0.2, verifiers={"arithmetic": 1.0}),
            {"arithmetic": "tests.unit.rewards.slow_import:never"},
        ).__enter__()
    assert set(workers()) == before


PARENT = """
import os, sys, threading
from slurm_rl.config.reward import RewardConfig
from slurm_rl.rewards.pool import RewardPool
from slurm_rl.rewards.results import RewardItem

if __name__ == "__main__":
    table = {"arithmetic": "tests.unit.rewards.bad_verifiers:obey"}
    pool = RewardPool(RewardConfig(num_workers=2, timeout_s=60, verifiers={"arithmetic": 1.0}), table).__enter__()
    print("up", flush=True)
    pool.score([RewardItem(completion=deed, answer="1") for deed in sys.argv[1:]])
"""


def runs(process: psutil.Process) -> bool:
    """Return whether the process runs; zombies, which wait for their parent, do not count."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_workers_die_with_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    path = os.pathsep.join([str(Path(__file__).parent), str(Path.cwd())])
    command = [sys.executable, str(script), "hang", "hang in c"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        time.sleep(0.5)
        children = psutil.Process(parent.pid).children(recursive=True)
        assert len(children) >= 2
        parent.kill()
    give_up = time.monotonic() + 60
    while (alive := [p for p in children if runs(p)]) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert alive == []


def test_pool_imports_no_heavy_module() -> None:
    """The pool shares a process with vLLM and torch; importing the pool or its workers needs neither."""
    code = (
        "import sys, slurm_rl.rewards.pool, slurm_rl.rewards.results, slurm_rl.data.load_data,"
        "slurm_rl.data.split, slurm_rl.data.tokenize;"
        "print(sorted({'torch', 'ray', 'vllm', 'sympy', 'math_verify', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"[]\n"
