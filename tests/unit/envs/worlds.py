"""Worlds for tests, as a user's file has them: one that works and those that misbehave."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from slurm_rl.envs.environment import Environment, Reply, Row, Step


class Count(Environment):
    """Says how many replies it has had, and ends at row.answer of them."""

    def reset(self, row: Row, seed: int) -> None:
        self.replies: list[str] = []
        self.last = int(row.answer)

    def step(self, reply: Reply) -> Step:
        self.replies.append(reply.text)
        done = len(self.replies) == self.last
        return Step(" ".join(self.replies), 1.0 if done else None, done, {"replies": len(self.replies)})


class Bad(Count):
    """Does what its reply says."""

    def step(self, reply: Reply) -> Step:
        match reply.text:
            case "raise":
                raise KeyError("no such door")
            case "hang":
                time.sleep(600)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "nothing":
                return None  # type: ignore[return-value]
            case "nan":
                return Step("", float("nan"))
            case "number":
                return Step(7)  # type: ignore[arg-type]
            case "done":
                return Step("", 1.0, "yes")  # type: ignore[arg-type]
            case "scores":
                return Step("", 1.0, True, {"a": float("inf")})
        return super().step(reply)


class Fleeting(Bad):
    """A world that nothing brings back."""

    resume = "restart"


class Slow(Count):
    """Waits side by side with others, or for ever."""

    async def step(self, reply: Reply) -> Step:  # type: ignore[override]
        await asyncio.sleep(600 if reply.text == "wait" else 0.3)
        return super().step(reply)


class Noted(Count):
    """Has an effect outside, once a call: a file in the folder that the prompt names."""

    def reset(self, row: Row, seed: int) -> None:
        super().reset(row, seed)
        self.folder = Path(row.prompt)

    def step(self, reply: Reply) -> Step:
        (self.folder / reply.call_id).touch(exist_ok=False)
        return super().step(reply)
