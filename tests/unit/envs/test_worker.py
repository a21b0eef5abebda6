import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_rl.envs import worker
from slurm_rl.envs.environment import Environment, Reply, Row, Step
from slurm_rl.envs.steps import Said, digest_step
from slurm_rl.envs.worker import Call, Worlds


class Sent:
    """A channel that records messages."""

    def __init__(self) -> None:
        self.messages: list[list[str]] = []

    def send(self, said: Said) -> None:
        self.messages.append([answer.episode for answer in said.read()])


class Told(Environment):
    """An environment with scripted callbacks."""

    def __init__(self, do: Callable[[str], Awaitable[None]]) -> None:
        self.do = do

    def reset(self, row: Row, seed: int) -> None:
        pass

    async def step(self, reply: Reply) -> Step:
        await self.do(reply.text)
        return Step(done=True)


def worlds_of(sent: Sent, do: Callable[[str], Awaitable[None]]) -> Worlds:
    wire: Any = sent
    return Worlds(lambda: Told(do), 60.0, wire, SimpleNamespace(value=0))


def call(name: str) -> Call:
    return Call(name, Row(index=0, prompt="", answer=""), 1, [Reply(text=name)])


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30.0):
        while not holds():
            await asyncio.sleep(0.001)


def test_ended_steps_are_reported_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LINGER_S", 0.5)
    sent, names = Sent(), [str(number) for number in range(20)]

    async def play() -> None:
        begun = asyncio.Event()

        async def do(name: str) -> None:
            await begun.wait()

        worlds = worlds_of(sent, do)
        worlds.take([call(name) for name in names])
        await until(lambda: worlds.num_begun.value == len(names))
        begun.set()
        await until(lambda: sum(map(len, sent.messages)) == len(names))

    asyncio.run(play())
    assert sent.messages == [names[:1], names[1:]]


@pytest.mark.parametrize("end", ["begins", "takes the process along"])
def test_ended_step_does_not_wait_for_others(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setattr(worker, "LINGER_S", 3600.0)
    ends: list[int] = []

    def end_process(code: int) -> None:
        ends.append(code)
        raise RuntimeError

    monkeypatch.setattr(worker.os, "_exit", end_process)
    sent, at_begin = Sent(), list[list[str]]()

    async def play() -> None:
        may_end = asyncio.Event()

        async def do(name: str) -> None:
            if name == "last":
                at_begin.extend(sent.messages)
                await may_end.wait()
                raise SystemExit(7)

        worlds = worlds_of(sent, do)
        earlier, late = ([call("a"), call("b")], []) if end == "begins" else ([], [call("a"), call("b")])
        worlds.take(earlier)
        await until(lambda: worlds.num_begun.value == len(earlier))
        worlds.take([call("last")])
        await until(lambda: worlds.num_begun.value == len(earlier) + 1)
        worlds.take(late)
        await until(lambda: worlds.num_begun.value == 3)
        may_end.set()
        await until(lambda: ends == [7])

    asyncio.run(play())
    assert sent.messages == [["a"], ["b"]]
    assert at_begin == (sent.messages if end == "begins" else [])


def test_invalid_unicode_step_has_digest() -> None:
    digests = {digest_step(Step("go on", scores={name: value})) for name in ("\ud83d", "a") for value in (0.0, 1.0)}
    assert len(digests) == 4
