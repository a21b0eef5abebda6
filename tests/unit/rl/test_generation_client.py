"""Requests to asynchronous engines get one response each, also if an engine is lost."""

import contextlib
import queue
import threading
from array import array
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_rl.errors import TrainingError
from slurm_rl.rollout.engine import Generated, GenerationRequest, Rejected
from slurm_rl.rollout.generation_client import GenerationClient
from slurm_rl.workers.ray_driver import Actor, ActorLost
from tests.unit.rl.episode_kit import SPEC, Engine, sampler_of

REQUESTS = [GenerationRequest(f"7.{at}.0", array("i", [at, at + 1]).tobytes(), at, SPEC) for at in range(20)]


class Driver:
    """Run a GenerationClient as the episode loop does."""

    def __init__(self, *engines: Engine, supervisor: Any = None) -> None:
        self.inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.responses: dict[str, list[int]] = {}
        self.rejected: list[Rejected] = []
        self.error: BaseException | None = None
        self.sampler = sampler_of(*engines, supervisor=supervisor)
        self.client = GenerationClient(
            self.sampler, self.inbox.put, self._deliver, self._fail, lambda rejected: self.rejected.extend(rejected)
        )

    def _deliver(self, responses: Sequence[Generated]) -> None:
        for name, response in responses:
            assert name not in self.responses, "delivered twice"
            self.responses[name] = response.unpack().token_ids

    def _fail(self, error: BaseException) -> None:
        self.error = error

    def run_until(self, count: int) -> dict[str, list[int]]:
        while len(self.responses) + len(self.rejected) < count:
            self.inbox.get(timeout=30)()
            if self.error is not None:
                raise self.error
        return self.responses


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, list[int]]:
    driver = Driver(Engine())
    driver.client.submit(REQUESTS)
    return driver.run_until(len(REQUESTS))


def test_client_balances_episodes_and_keeps_their_engine(undisturbed: dict[str, list[int]]) -> None:
    engines = [Engine(order) for order in range(3)]
    driver = Driver(*engines)
    driver.client.submit(REQUESTS)
    assert driver.run_until(len(REQUESTS)) == undisturbed
    assert sorted(len(engine.asked) for engine in engines) == [6, 7, 7]
    driver.responses = {}
    driver.client.submit(REQUESTS)
    driver.run_until(len(REQUESTS))
    assert all(len({it.name for it in engine.asked}) * 2 == len(engine.asked) for engine in engines)


def test_client_reports_rejected_request_and_delivers_others(undisturbed: dict[str, list[int]]) -> None:
    class Rejecting(Engine):
        def on_submit(self, client: str, requests: Sequence[GenerationRequest]) -> None:
            super().on_submit(client, [it for it in requests if it.seed != 3])
            self.rejected = [(it.name, "empty prompt") for it in requests if it.seed == 3]

        def _results(self, client: str) -> tuple[list[Generated], list[Rejected]]:
            rejected, self.rejected = self.rejected, []
            return self.finished(client), rejected

    driver = Driver(Rejecting())
    driver.client.submit(REQUESTS)
    responses = driver.run_until(len(REQUESTS))
    assert driver.rejected == [("7.3.0", "empty prompt")]
    assert responses == {name: tokens for name, tokens in undisturbed.items() if name != "7.3.0"}


def test_client_raises_error_of_engine() -> None:
    class Broken(Engine):
        def finished(self, client: str) -> list[Generated]:
            raise TrainingError("a thing must be", seen="none")

    driver = Driver(Broken())
    driver.client.submit(REQUESTS)
    with pytest.raises(TrainingError, match="a thing must be"):
        driver.run_until(1)


def test_client_waits_for_weights_of_replacement(undisturbed: dict[str, list[int]]) -> None:
    """The supervisor may list a replacement before it has weights."""
    old, fresh = Engine(lives=5), Engine()
    waits, proven = threading.Event(), threading.Event()

    def recover(lost: ActorLost) -> None:
        assert lost.handle is old
        waits.set()
        assert proven.wait(30)

    driver = Driver(old, supervisor=SimpleNamespace(recover=recover))
    driver.client.submit(REQUESTS[:10])
    driver.sampler.engines[0] = Actor("rollout-0", fresh)
    driver.run_until(5)
    driver.client.submit(REQUESTS[10:])
    while not waits.is_set():
        with contextlib.suppress(queue.Empty):
            driver.inbox.get(timeout=0.01)()
    assert not fresh.asked
    proven.set()
    assert driver.run_until(len(REQUESTS)) == undisturbed
