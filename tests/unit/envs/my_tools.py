"""User-defined tools for tests/unit/envs/test_tools.py."""

import asyncio
import json
import os
import time
from typing import Any

from slurm_rl.envs.environment import Reply, Row


def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: First number.
        b: Second number.
    """
    return a + b


async def wait(seconds: float) -> dict[str, float]:
    """Wait.

    Args:
        seconds: Duration in seconds.
    """
    await asyncio.sleep(seconds)
    return {"waited": seconds}


def misbehave(way: str | None) -> Any:
    """Misbehave.

    Args:
        way: Kind of failure. (choices: ["raise", "exit", "surrogate", "long", "object", "circle", "block", "die"])
    """
    circle: list[Any] = []
    circle.append(circle)
    if way == "raise":
        raise KeyError("no such door")
    if way == "exit":
        raise SystemExit(3)
    if way == "block":
        time.sleep(60.0)
    if way == "die":
        os._exit(9)
    return {"surrogate": "\ud800", "long": "x" * 200_000, "object": object, "circle": circle}.get(way or "")


def _helper() -> None:
    pass


class Cart:
    """A stateful tool set; each episode has its own instance."""

    def reset(self, row: Row, seed: int) -> None:
        self.things = [row.answer]

    def put(self, thing: str) -> list[str]:
        """Add an item to the cart.

        Args:
            thing: Name of the item.
        """
        self.things.append(thing)
        return self.things

    async def score(self, reply: Reply) -> float:
        return float(reply.text == str(len(self.things)))

    def _private(self) -> None: ...


class SavedCart(Cart):
    """A cart with snapshot and restore."""

    resume = "snapshot"

    def snapshot(self) -> bytes:
        return json.dumps(self.things).encode()

    def restore(self, row: Row, data: bytes) -> None:
        self.things = json.loads(data)


PAIR = [add, wait]
MINE = [add, wait, misbehave]


def untold(a, b):  # type: ignore[no-untyped-def]
    return a
