"""New weights that come in several calls: from the first to the update that ends them the engine takes no step."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_rl.rl.rollout.vllm.continuous import ContinuousEngine

PARAMS = SimpleNamespace(n=1)


class FakeEngine:
    """Ends its requests with the first step under new weights; says when it was stepped and given weights."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.said = ["begun"]
        self.stepped = threading.Event()

    def add_request(self, name: str, prompt: Any, params: Any) -> None:
        self.requests.append(name)

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def step(self) -> list[Any]:
        if self.said[-1] != "step":
            self.said.append("step")
        self.stepped.set()
        if "reset" not in self.said:
            return []
        ended, self.requests = self.requests, []
        return [SimpleNamespace(request_id=n, outputs=[], prompt_logprobs=["p"], finished=True) for n in ended]

    def reset_prefix_cache(self, reset_running_requests: bool) -> None:
        self.said.append("reset")


def test_no_step_is_taken_while_half_of_the_weights_are_there() -> None:
    engine = FakeEngine()
    continuous = ContinuousEngine(engine)
    sampling = threading.Thread(target=lambda: continuous.generate([{}], [PARAMS]), daemon=True)
    sampling.start()
    assert engine.stepped.wait(60)
    continuous.run(lambda: engine.said.append("start"), hold=True)
    # What is asked for meanwhile waits, and does not wake it up.
    late = threading.Thread(target=lambda: continuous.generate([{}], [PARAMS]), daemon=True)
    late.start()
    for part in ("update", "finish"):
        continuous.run(lambda part=part: engine.said.append(part))  # type: ignore[misc]
    while len(engine.requests) < 2:
        time.sleep(0.01)
    engine.stepped.clear()
    assert not engine.stepped.wait(0.2)
    loaded, probed = continuous.update(5, lambda: engine.said.append("take") or "sums", "probe", PARAMS)  # type: ignore[arg-type, func-returns-value]
    assert (loaded, probed, continuous.version) == ("sums", ["p"], 5)
    for thread in (sampling, late):
        thread.join(60)
        assert not thread.is_alive()
    assert engine.said == ["begun", "step", "start", "update", "finish", "take", "reset", "step"]


def test_weights_that_fail_to_come_are_the_callers_error() -> None:
    continuous = ContinuousEngine(FakeEngine())

    def fail() -> None:
        raise ValueError("no weights")

    with pytest.raises(ValueError, match="no weights"):
        continuous.run(fail, hold=True)
