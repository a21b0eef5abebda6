"""Handles and a cluster of Ray whose calls run at once in this process."""

import asyncio
import inspect
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import ray

from slurm_rl.data.groups import SamplingSpec, Trajectory
from slurm_rl.workers.ray_driver import Actor


class Handle:
    """Call methods of `target` at once instead of `method.remote(...)`; a lost actor answers with Ray's error."""

    def __init__(self, target: Any) -> None:
        self.target, self.is_lost, self.loop = target, False, asyncio.new_event_loop()

    def __getattr__(self, name: str) -> Any:
        call = SimpleNamespace(remote=lambda *args: self._call(name, args))
        call.options = lambda **_: call
        return call

    def _call(self, name: str, args: Sequence[Any]) -> Any:
        found = getattr(self.target, name)(*args)
        if inspect.iscoroutine(found):
            found = self.loop.run_until_complete(found)
        return ray.exceptions.ActorDiedError() if self.is_lost else found


class FakeCluster:
    """All nodes are this process; `placed` has plan and handle of each actor."""

    def __init__(self, **plan: Any) -> None:
        self.plan, self.placed = SimpleNamespace(**plan), list[tuple[Any, Handle]]()
        self.nodes = SimpleNamespace(host=lambda: "127.0.0.1")

    def place(self, actor: Any, cls: type, *args: Any, **options: Any) -> Actor:
        self.options = options
        self.placed.append((actor, Handle(cls(*args))))
        return Actor(f"{actor.role}-{actor.index}", self.placed[-1][1])

    def gather(self, calls: Sequence[tuple[Actor, Any]], **_: Any) -> list[Any]:
        return [answer for _, answer in calls]


def actors_of(role: str, *targets: Any) -> list[Actor]:
    return [Actor(f"{role}-{place}", Handle(target)) for place, target in enumerate(targets)]


class SamplerEngine:
    """Handle of a synchronous engine: it is dead, responds with its version at once, or waits for `answer`."""

    def __init__(self, version: int | None = None, *, dies: bool = False, starts: bool = True) -> None:
        self.version, self.dies, self.starts = version, dies, starts
        self.calls: list[tuple[list[Any], list[int], SamplingSpec, Future[Any]]] = []
        self.generate = SimpleNamespace(remote=self._generate)
        self.ready = SimpleNamespace(remote=lambda: self.starts)

    def _generate(self, prompts: Sequence[Any], seeds: Sequence[int], spec: SamplingSpec) -> Any:
        answer: Future[Any] = Future()
        self.calls.append((list(prompts), list(seeds), spec, answer))
        if self.dies:
            answer.set_exception(ray.exceptions.ActorDiedError())
        elif self.version is not None:
            self.answer(-1)
        return SimpleNamespace(future=lambda: answer)

    def answer(self, index: int) -> None:
        prompts, _, spec, answer = self.calls[index]
        versions = [self.version or 0] * spec.num_completions
        answer.set_result([[Trajectory(p.token_ids, [-0.5], "x", False, one) for one in versions] for p in prompts])
