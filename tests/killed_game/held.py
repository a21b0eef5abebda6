"""The shipped guessing game with a trace of every call; calls may be held until the run is killed.

A run has its copy of this file and of the shipped game.py (code/user_functions/<hash>/). It writes next to the run:

    run-seen/calls      id of each call, one per line, in order of arrival
    run-seen/effects/   external effects: one file per call, created or found by its id
    run-seen/hold       seed of a batch and a turn: every second call of that turn waits while this file exists
    run-seen/held       the same and the pid of a waiting process
"""

import asyncio
import contextlib
import json
import os
from pathlib import Path

from game import Guess

from slurm_rl.envs.environment import Reply, Row, Step
from slurm_rl.run_dir.run_dir import write_text

_RUN = Path(__file__).parents[3]
SEEN = _RUN.with_name(f"{_RUN.name}-seen")


class HeldGuess(Guess):
    async def step(self, reply: Reply) -> Step:
        with (SEEN / "calls").open("a") as calls:
            calls.write(f"{reply.call_id}\n")
        (SEEN / "effects" / reply.call_id).touch()
        while hold := _find_hold(reply.call_id):
            call_hold = f"{hold} {os.getpid()}"
            if _read("held") != call_hold:
                write_text(SEEN / "held", call_hold)
            await asyncio.sleep(0.5)
        found: Step = super().step(reply)
        return found


class SavedGuess(HeldGuess):
    """The game with snapshots, so that no reply is replayed."""

    resume = "snapshot"

    def snapshot(self) -> bytes:
        return json.dumps([self.secret, self.turn]).encode()

    def restore(self, row: Row, data: bytes) -> None:
        self.secret, self.turn = json.loads(data)


def _find_hold(call_id: str) -> str:
    """Return the content of `hold` that applies to this call; "" if none."""
    seed, _, _, turn, checksum = call_id.split(".")
    hold = _read("hold")
    return hold if hold == f"{seed} {turn}" and int(checksum, 16) % 2 == 0 else ""


def _read(name: str) -> str:
    with contextlib.suppress(OSError):
        return (SEEN / name).read_text()
    return ""
