import signal
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from slurm_rl.errors import RewardError
from slurm_rl.rewards import worker_processes
from slurm_rl.rewards.pool import RewardPool
from slurm_rl.rewards.results import RewardItem, RewardResult
from tests.unit.rewards.reward_pool_kit import build_items, build_pool, workers


@pytest.fixture(scope="module")
def pool() -> Iterator[RewardPool]:
    with build_pool() as pool:
        yield pool


def values(future: Future[list[RewardResult]]) -> list[float | None]:
    return [result.value for result in future.result(60)]


def test_concurrent_requests_get_their_own_results(pool: RewardPool) -> None:
    futures = [pool.submit(build_items(size, {})) for size in range(100)]
    for size, future in enumerate(futures):
        assert values(future) == [i / 1000 for i in range(size)]
    assert pool.num_waiting == 0


def test_faulty_items_fail_in_any_request(pool: RewardPool) -> None:
    deeds = {3: "hang", 4: "exit", 5: "nan", 6: "raise", 7: "bad gold"}
    futures = [pool.submit(build_items(10, {i: deed})) for i, deed in deeds.items()]
    causes = ["hang", "crash", "bad score", "exception", "reference"]
    for future, (i, cause) in zip(futures, zip(deeds, causes, strict=True), strict=True):
        assert {j: r.failure for j, r in enumerate(future.result(60)) if r.failure} == {i: cause}


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
        future = pool.submit(build_items(3, {0: "hang", 1: "hang", 2: "hang in c"}))
    with pytest.raises(RewardError, match="they were stopped"):
        future.result(0)
    assert set(workers()) == before
