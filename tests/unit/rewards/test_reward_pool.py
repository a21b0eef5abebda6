import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from slurm_rl.config.reward import RewardConfig
from slurm_rl.rewards.pool import RewardPool
from slurm_rl.rewards.results import RewardItem
from slurm_rl.rewards.worker_processes import VerifierProcesses
from tests.unit.rewards.reward_pool_kit import build_items, build_pool


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
        ("nan", "bad score", "arithmetic returned float nan"),
        ("inf", "bad score", "float inf"),
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


def test_value_is_weighted_sum() -> None:
    with build_pool(verifiers={"arithmetic": 2.0, "format": -0.5}) as pool:
        [result] = pool.score([RewardItem(completion="fine", answer="400")])
    assert result.parts == {"arithmetic": 0.4, "format": 0.5}
    assert result.value == pytest.approx(2.0 * 0.4 - 0.5 * 0.5)


def test_score_of_no_items_is_empty(pool: RewardPool) -> None:
    assert pool.score([]) == []


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
