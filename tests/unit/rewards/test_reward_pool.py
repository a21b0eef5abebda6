import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from slurm_rl.config.reward import RewardConfig
from slurm_rl.errors import RewardError
from slurm_rl.rewards import worker_processes
from slurm_rl.rewards.pool import RewardPool
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.rewards.worker_processes import VerifierProcesses
from tests.unit.rewards.reward_pool_kit import build_items, build_pool, outlive_killed, workers


@pytest.fixture(scope="module")
def pool() -> Iterator[RewardPool]:
    with build_pool() as pool:
        yield pool


def test_only_faulty_items_fail_and_none_is_lost(pool: RewardPool) -> None:
    hangs = dict.fromkeys((7, 130, 131, 300), "hang") | {450: "hang in c"}
    crashes = dict.fromkeys((0, 8, 255, 499), "exit") | {256: "segfault"}
    items = build_items(500, hangs | crashes)
    results = pool.score(items)
    assert [r.item for r in results] == items
    assert {i for i, r in enumerate(results) if r.failure == "hang"} == set(hangs)
    assert {i for i, r in enumerate(results) if r.failure == "crash"} == set(crashes)
    fine = [i for i in range(500) if i not in hangs | crashes]
    assert all(results[i].value == results[i].parts["arithmetic"] == i / 1000 for i in fine)
    assert all(r.value is None and r.parts == {} and r.detail for r in results if r.failure)


@pytest.mark.parametrize(
    ("deed", "failure", "detail"),
    [
        ("hang", "hang", "no score within 1 s"),
        ("hang in c", "hang", "no score within 1 s"),
        ("hang without sigterm", "hang", "no score within 1 s"),
        ("exit", "crash", "exit code 3"),
        ("segfault", "crash", "exit code -11"),
        ("raise", "exception", "arithmetic: ValueError: cannot read this"),
        ("unpicklable", "exception", "Unpicklable"),
        ("sys.exit", "exception", "SystemExit"),
        ("interrupt", "exception", "KeyboardInterrupt"),
        ("bad gold", "reference", "the answer must be readable"),
        ("nan", "bad score", "arithmetic returned float nan"),
        ("none", "bad score", "NoneType None"),
        ("text", "bad score", "str '1.0'"),
        ("two", "bad score", "float 2.0"),
        ("minus", "bad score", "float -0.5"),
    ],
)
def test_failures_have_distinct_causes(pool: RewardPool, deed: str, failure: str, detail: str) -> None:
    results = pool.score(build_items(5, {2: deed}))
    assert [r.failure for r in results] == [None, None, failure, None, None]
    assert detail in results[2].detail
    assert [r.value for r in results] == [0.0, 0.001, None, 0.003, 0.004]


def test_slow_items_are_not_hangs(pool: RewardPool) -> None:
    """A chunk of 16 takes 2.4 s in all, over twice the deadline of one item."""
    results = pool.score(build_items(32, dict.fromkeys(range(32), "slow")))
    assert [r.value for r in results] == [0.25] * 32


def test_hung_item_ends_at_own_deadline(pool: RewardPool) -> None:
    """It hangs twice: in its chunk of 32 items with 32 s in total, and in its retry as a single item."""
    started = time.monotonic()
    results = pool.score(build_items(64, {40: "hang"}))
    assert [r.failure for r in results].count("hang") == 1
    assert 1.9 < time.monotonic() - started < 25


def test_long_and_odd_completions_arrive_unchanged(pool: RewardPool) -> None:
    items = [RewardItem(completion="\u4e2d\0\ud800" * 100_000, answer=str(i)) for i in range(20)]
    assert [r.value for r in pool.score(items)] == [i / 1000 for i in range(20)]


def test_items_travel_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One message per item would cost more than the scoring."""
    items = [RewardItem(completion=f" {i}\n", answer=str(i % 200)) for i in range(256)]
    submit, sizes = VerifierProcesses.submit, []

    def count(self: VerifierProcesses, chunk: Sequence[RewardItem], **limits: float) -> Future[Any]:
        sizes.append(len(chunk))
        return submit(self, chunk, **limits)

    monkeypatch.setattr(VerifierProcesses, "submit", count)
    with RewardPool(RewardConfig(num_workers=2, verifiers={"arithmetic": 1.0})) as pool:
        results = pool.score(items)
    assert Counter(r.value for r in results) == {1.0: 200, 0.0: 56}
    # The last chunks are smaller, so that workers finish together.
    assert sizes == [64, 64, 64, 32, 16, 8, 4, 2, 1, 1]


def values(future: Future[list[RewardResult]]) -> list[float | None]:
    return [result.value for result in future.result(60)]


def test_concurrent_requests_get_their_own_results(pool: RewardPool) -> None:
    futures = [pool.submit(build_items(size, {})) for size in range(100)]
    for size, future in enumerate(futures):
        assert values(future) == [i / 1000 for i in range(size)]
    assert pool.num_waiting == 0


def test_hung_items_leave_worker_for_others() -> None:
    with build_pool(num_workers=2, timeout_s=1.5) as pool:
        hung = [pool.submit(build_items(1, {0: "hang"})) for _ in range(4)]
        late = pool.submit(build_items(20, {}))
        assert values(late) == [i / 1000 for i in range(20)]
        wait(hung, 60)
        assert [future.result().pop().failure for future in hung] == ["hang"] * 4


def test_workers_killed_by_kernel_are_replaced() -> None:
    with build_pool() as pool:
        futures = [pool.submit(build_items(40, {0: "slow"})) for _ in range(5)]
        for process in workers():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        futures.append(pool.submit(build_items(40, {1: "slow"})))
        for future in futures:
            assert [result.failure for result in future.result(60)] == [None] * 40
        assert values(futures[-1])[2:] == [i / 1000 for i in range(2, 40)]


def test_item_is_scored_although_its_worker_was_killed(pool: RewardPool, tmp_path: Path) -> None:
    items = [RewardItem(completion="die once", answer=str(tmp_path / "marker")), *build_items(10, {})]
    assert values(pool.submit(items[:1])) == [0.75]
    (tmp_path / "marker").unlink()
    assert values(pool.submit(items)) == [0.75, *(i / 1000 for i in range(10))]


def test_repeatedly_broken_pool_ends_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_processes.VerifierProcesses, "next_done", lambda self, deadline_s: None)
    monkeypatch.setattr(worker_processes.VerifierProcesses, "restart", lambda self: None)
    pool = build_pool()
    with suppress(RewardError), pool:
        with pytest.raises(RewardError, match="must stay alive; got 4 consecutive broken pools"):
            pool.ended.result(60)
        with pytest.raises(RewardError, match="must stay alive"):
            pool.submit(build_items(1, {})).result(60)


def test_exit_answers_waiting_requests_and_leaves_no_process() -> None:
    before = set(workers())
    with build_pool(timeout_s=60) as pool:
        future = pool.submit(build_items(3, {0: "hang", 1: "hang without sigterm", 2: "hang in c"}))
    with pytest.raises(RewardError, match="they were stopped"):
        future.result(0)
    assert set(workers()) == before


@pytest.mark.parametrize("pause_s", [0.0, 0.5])
def test_dead_idle_workers_are_replaced(pause_s: float) -> None:
    """The kernel's OOM killer does this; pebble then breaks the pool, before or after the next call."""
    before = set(workers())
    with build_pool() as pool:
        for process in set(workers()) - before:
            # pebble kills the other workers when it notices the first death, which may happen between these two.
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        time.sleep(pause_s)
        assert [r.value for r in pool.score(build_items(200, {}))] == [i / 1000 for i in range(200)]
        assert len(set(workers()) - before) == 2


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
import sys
from slurm_rl.config.reward import RewardConfig
from slurm_rl.rewards.pool import RewardPool
from slurm_rl.rewards.results import RewardItem

if __name__ == "__main__":
    table = {"arithmetic": "tests.unit.rewards.bad_verifiers:obey"}
    pool = RewardPool(RewardConfig(num_workers=2, timeout_s=60, verifiers={"arithmetic": 1.0}), table).__enter__()
    print("up", flush=True)
    pool.score([RewardItem(completion=deed, answer="1") for deed in sys.argv[1:]])
"""


def test_workers_die_with_killed_parent(tmp_path: Path) -> None:
    assert outlive_killed(PARENT, tmp_path, "hang", "hang in c") == []


def test_pool_imports_no_heavy_module() -> None:
    """The pool shares a process with vLLM and torch; importing the pool or its workers needs neither."""
    code = (
        "import sys, slurm_rl.rewards.pool, slurm_rl.rewards.results, slurm_rl.data.load_data,"
        "slurm_rl.data.split, slurm_rl.data.tokenize;"
        "print(sorted({'torch', 'ray', 'vllm', 'sympy', 'math_verify', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"[]\n"
