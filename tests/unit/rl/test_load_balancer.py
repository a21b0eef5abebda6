"""Balancing of requests over engines; engines here respond when the test does."""

from __future__ import annotations

import itertools
import signal
import time
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.data.groups import SamplingSpec
from slurm_rl.errors import StopRequested, TrainingError
from slurm_rl.node.stop import StopFlag, Timer
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.rollout.load_balancer import AsyncSampler, max_calls
from slurm_rl.rollout.sampling import Sampler, gather_arrivals, score_arrivals, seed_prompts, split_evenly
from slurm_rl.workers.ray_driver import Actor, Cluster
from tests.unit.rl.batch_kit import make_prompts
from tests.unit.rl.fake_ray import SamplerEngine

SPEC = SamplingSpec(2, 8, 1.0, 1.0, seed=3)


class Engines:
    def __init__(self, count: int, *, staleness: int = 1, max_num_seqs: int = 16) -> None:
        self.engines = [SamplerEngine() for _ in range(count)]
        cluster = Cluster.__new__(Cluster)
        self.stop = cluster.stop = StopFlag()
        actors = [Actor(f"rollout-{i}", engine) for i, engine in enumerate(self.engines)]
        self.sampler = AsyncSampler(cluster, actors, 60, max_num_seqs=max_num_seqs, staleness=staleness)

    def settle(self) -> list[int]:
        """Wait until the balancer is idle; return the number of calls per engine."""
        balancer = self.sampler.balancer
        self._wait_for_inbox()
        while balancer._waiting and balancer._choose_engine() is not None:
            time.sleep(0.001)
        self._wait_for_inbox()
        return [len(engine.calls) for engine in self.engines]

    def _wait_for_inbox(self) -> None:
        done: Future[None] = Future()
        self.sampler.balancer._inbox.put(lambda: done.set_result(None))
        done.result(60)


def test_sampler_returns_groups_in_order_of_prompts() -> None:
    it = Engines(2)
    pending = it.sampler.start(make_prompts(6), SPEC)
    assert it.settle() == [3, 3]
    for index in (2, 0, 1):
        for engine in reversed(it.engines):
            engine.answer(index)
    groups = it.sampler.finish(pending)
    assert [group.completions[0].token_ids for group in groups] == [[i] for i in range(6)]
    seeds = {asked[0].token_ids[0]: seeds[0] for engine in it.engines for asked, seeds, *_ in engine.calls}
    assert seeds == dict(enumerate(seed_prompts(SPEC, 6)))
    assert len(set(seeds.values())) == 6, "two prompts would draw the same numbers"


@given(num_prompts=st.integers(0, 40), num_engines=st.integers(1, 9), seed=st.integers(0, 2**63 - 1))
def test_seeds_do_not_depend_on_number_of_engines(num_prompts: int, num_engines: int, seed: int) -> None:
    engines = [SamplerEngine() for _ in range(num_engines)]
    sampler = Sampler(Cluster.__new__(Cluster), [Actor(f"rollout-{i}", engine) for i, engine in enumerate(engines)], 60)
    sampler.start(make_prompts(num_prompts), replace(SPEC, seed=seed))
    found = {
        p.token_ids[0]: own
        for engine in engines
        for asked, seeds, *_ in engine.calls
        for p, own in zip(asked, seeds, strict=True)
    }
    assert found == dict(enumerate(seed_prompts(replace(SPEC, seed=seed), num_prompts)))


def test_balancer_sends_next_chunks_to_engine_with_room() -> None:
    it = Engines(2)
    limit = max_calls(1)
    it.sampler.start(make_prompts(2 * limit + 3), SPEC)
    assert it.settle() == [limit, limit]
    for index in (0, 1):
        it.engines[1].answer(index)
    assert it.settle() == [limit, limit + 2]


def test_balancer_queues_second_batch_behind_first() -> None:
    it = Engines(1)
    it.sampler.start(make_prompts(3), SPEC)
    it.sampler.start(make_prompts(13)[10:], SPEC)
    assert it.settle() == [6]
    assert [call[0][0].token_ids[0] for call in it.engines[0].calls] == [0, 1, 2, 10, 11, 12]


def test_finish_names_failed_engine(capsys: pytest.CaptureFixture[str]) -> None:
    from ray.exceptions import RayActorError

    it = Engines(2)
    pending = it.sampler.start(make_prompts(2), SPEC)
    it.settle()
    it.engines[1].calls[0][3].set_exception(RayActorError())
    with pytest.raises(TrainingError, match="rollout-1 must live through sampling"):
        it.sampler.finish(pending)


def test_score_arrivals_overlaps_sampling() -> None:
    it = Engines(2)
    pending = it.sampler.start(make_prompts(4), SPEC)
    it.settle()
    arrivals = it.sampler.arrivals(pending)
    scored: list[list[str]] = []

    class Rewards:
        def score(self, items: list[RewardItem]) -> list[RewardResult]:
            scored.append([item.prompt for item in items])
            if len(scored) == 1:  # the other requests end during the scoring
                for engine, index in ((it.engines[0], 0), (it.engines[1], 1), (it.engines[0], 1)):
                    engine.answer(index)
            return [RewardResult(item=item, value=float(item.prompt)) for item in items]

    it.engines[1].answer(0)
    timer = Timer()
    groups = score_arrivals(arrivals, Rewards(), timer)
    later = [prompt for part in scored[1:] for prompt in part]
    assert scored[0] == ["1", "1"] and sorted(later) == ["0", "0", "2", "2", "3", "3"]
    assert [[result.value for result in group.results] for group in groups] == [[float(i)] * 2 for i in range(4)]
    assert set(timer.seconds) == {"time/rollout_s", "time/reward_s"}


def test_gather_arrivals_yields_all_groups_in_order() -> None:
    it = Engines(2)
    pending = it.sampler.start(make_prompts(4), SPEC)
    it.settle()
    it.engines[1].answer(1)
    arrivals = it.sampler.arrivals(pending)
    first = next(arrivals)
    for engine, index in ((it.engines[0], 1), (it.engines[1], 0), (it.engines[0], 0)):
        engine.answer(index)
    [found] = gather_arrivals(itertools.chain([first], arrivals))
    assert list(found) == [0, 1, 2, 3] and [group.prompt.index for group in found.values()] == [0, 1, 2, 3]


def test_finish_names_silent_engine_and_obeys_stop_signal() -> None:
    it = Engines(2)
    pending = it.sampler.start(make_prompts(2), SPEC)
    it.settle()
    it.engines[0].answer(0)
    with pytest.raises(TrainingError, match="no answer from rollout-1"):
        it.sampler.finish(pending, within_s=0.0)
    it.stop.signal = signal.SIGTERM
    with pytest.raises(StopRequested):
        it.sampler.finish(pending)
    it.engines[1].answer(0)
    assert len(it.sampler.finish(pending, within_s=60)) == 2


@given(st.integers(0, 50), st.integers(1, 9))
def test_split_evenly_returns_bounds_of_even_parts(num_items: int, num_parts: int) -> None:
    bounds = split_evenly(num_items, num_parts)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, num_items, num_parts + 1)
    sizes = [end - start for start, end in pairwise(bounds)]
    assert max(sizes) - min(sizes) <= 1


def test_seeds_differ_by_index_and_repeat() -> None:
    assert derive_seed(0, "rollout", 3) == derive_seed(0, "rollout", 3)
    places = [(run, what, step) for run in range(3) for what in ("rollout", "eval") for step in range(50)]
    assert len({derive_seed(*place) for place in places}) == len(places)
    assert all(0 <= derive_seed(*place) < 2**63 for place in places)
