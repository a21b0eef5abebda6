"""New weights that come in several calls: from the first to the update that ends them the engine takes no step."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_rl.data.groups import SamplingSpec
from slurm_rl.rollout.reply_request import ReplyRequest
from slurm_rl.rollout.vllm.continuous import ContinuousEngine
from slurm_rl.rollout.vllm.ended_replies import EndedReplies

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


class Dead(Exception):
    """The engine has died."""


class RefusingEngine(FakeEngine):
    """Refuses prompts as vLLM refuses an empty one."""

    def __init__(self) -> None:
        super().__init__()
        self.said.append("reset")

    def add_request(self, name: str, prompt: Any, params: Any) -> None:
        if prompt == "dead":
            raise Dead
        if not prompt:
            raise ValueError("The decoder prompt cannot be empty")
        super().add_request(name, prompt, params)


def test_begin_refuses_one_request_and_samples_the_others() -> None:
    replies = EndedReplies(ContinuousEngine(RefusingEngine(), dead=(Dead,)))
    requests = [ReplyRequest(name, b"", 0, SamplingSpec(1, 1, 1.0, 1.0, 0)) for name in ("a", "b", "c")]
    refused = replies.begin("driver", requests, [{"p": 1}, {}, {"p": 1}], [PARAMS] * 3)
    assert refused == [("b", "ValueError: The decoder prompt cannot be empty")]
    found: list[str] = []
    while len(found) < 2:
        found += [request.episode for request, _ in replies.take("driver", 10.0, 0.0)]
    assert sorted(found) == ["a", "c"]
    with pytest.raises(Dead):
        replies.begin("driver", requests[:1], ["dead"], [PARAMS])  # type: ignore[list-item]
