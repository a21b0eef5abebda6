"""An environment as users of verifiers write one: Nim with a single heap. Two players take 1 to 3 stones in turn; the
player who takes the last stone wins. The opponent plays perfectly, so every move matters.
"""

from __future__ import annotations

import random
from typing import Any

import verifiers as vf
from datasets import Dataset

HEAPS = (5, 6, 7, 9)
"""Heap sizes that the first player can win; one token each."""


class Stones(vf.MultiTurnEnv):
    async def setup_state(self, state: vf.State) -> None:
        state["left"], state["won"], state["moves"] = state["info"]["stones"], 0.0, 0

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> vf.Messages:
        move = str(messages[-1].content).strip()
        taken = int(move) if move in ("1", "2", "3") else 0
        state["left"] -= taken
        if not taken or state["left"] < 0:
            return self.end(state, "no such move")
        state["moves"] += 1
        if not state["left"]:
            state["won"] = 1.0
            return self.end(state, "you won")
        state["left"] -= state["left"] % 4 or 1
        if not state["left"]:
            return self.end(state, "you lost")
        return [{"role": "user", "content": str(state["left"])}]

    def end(self, state: vf.State, text: str) -> vf.Messages:
        state["final_env_response"] = [{"role": "user", "content": text}]
        return state["final_env_response"]


async def won(state: vf.State) -> float:
    return state["won"]


async def moves(state: vf.State) -> float:
    """Score the share of legal moves; a small reward to start from."""
    return state["moves"]


def load_environment(games: int = 900) -> vf.Environment:
    """Build games distinguished by a number; their answers are random moves that only teach the format."""
    draw = random.Random(0)
    rows = [
        {"question": f"{number}:{stones}", "answer": draw.choice("123"), "info": {"stones": stones}}
        for number, stones in ((number, draw.choice(HEAPS)) for number in range(100, 100 + games))
    ]
    return Stones(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[won, moves], weights=[1.0, 0.1]))
