"""The shipped guessing game, whose every call leaves a trace, and may be held until its run is killed.

A run has its copy of this file and of the shipped game.py beside it (code/user_functions/<hash>/). Beside the run:

    run-seen/calls      the name of each call, one a line, as they came
    run-seen/effects/   an effect outside: a file a call, made anew or found there by its name
    run-seen/hold       the seed of a batch and a turn: every second call of that turn waits while this file is there
    run-seen/held       the same, and the number of a process in which one of them waits
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
        while wanted := _find_hold(reply.call_id):
            told = f"{wanted} {os.getpid()}"
            if _read("held") != told:
                write_text(SEEN / "held", told)
            await asyncio.sleep(0.5)
        found: Step = super().step(reply)
        return found


class SavedGuess(HeldGuess):
    """The same, which no reply is played again for."""

    resume = "snapshot"

    def snapshot(self) -> bytes:
        return json.dumps([self.secret, self.turn]).encode()

    def restore(self, row: Row, data: bytes) -> None:
        self.secret, self.turn = json.loads(data)


def _find_hold(call_id: str) -> str:
    """What holds it; "": nothing."""
    seed, _, _, turn, checksum = call_id.split(".")
    wanted = _read("hold")
    return wanted if wanted == f"{seed} {turn}" and int(checksum, 16) % 2 == 0 else ""


def _read(name: str) -> str:
    with contextlib.suppress(OSError):
        return (SEEN / name).read_text()
    return ""
