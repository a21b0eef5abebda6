"""Play environments with Gymnasium's `reset(seed=...)` and `step(action)` and text observations.

    env.agent_command=[/envs/theirs/bin/python, adapter:gymnasium, FrozenLake-v1] env.agent_rows_per_process=64
    env.agent_command=[/envs/theirs/bin/python, adapter:gymnasium, my_world.py:World]

The first observation follows the row's prompt. A reply is the action: an integer for discrete actions, otherwise the
text. An invalid action is reported to the policy and counts as a step.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from endpoint_client import Truncated, ask, find_in_file, serve


def find_maker(name: str, words: dict[str, Any]) -> Callable[[], Any]:
    """Makes an environment of a registered name, or of a class in a file."""
    cls = find_in_file(name)
    if cls is None:
        import gymnasium

        return lambda: gymnasium.make(name, **words)
    return lambda: cls(**words)


def read_action(reply: str, space: Any) -> Any:
    """Return the action of a reply; None if it is invalid."""
    size = getattr(space, "n", None)
    if size is None:
        return reply
    text = reply.strip()
    first = int(getattr(space, "start", 0))
    return int(text) if text.isdecimal() and first <= int(text) < first + int(size) else None


def play(row: dict[str, Any], make: Callable[[], Any], most: int) -> dict[str, Any]:
    world, total, turns = make(), 0.0, 0
    try:
        observation, _ = world.reset(seed=row["seed"] % 2**31)
        messages = list(row["messages"] or [{"role": "user", "content": row["prompt"]}])
        messages[-1] = {**messages[-1], "content": f"{messages[-1]['content']}{observation}"}
        while turns < most:
            reply, turns = ask(row, messages), turns + 1
            action = read_action(reply, getattr(world, "action_space", None))
            said = "no such action"
            if action is not None:
                observation, reward, terminated, truncated, _ = world.step(action)
                said, total = str(observation), total + float(reward)
                if terminated or truncated:
                    break
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": said}]
    except Truncated:
        pass
    finally:
        if hasattr(world, "close"):
            world.close()
    return {"reward": total, "scores": {"steps": turns}}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name", help="a registered name, or file.py:Class")
    parser.add_argument("--words", type=json.loads, default={}, help="its arguments, as a JSON object")
    parser.add_argument("--max-steps", type=int, default=8)
    args = parser.parse_args()
    maker = find_maker(args.name, args.words)
    serve(lambda row: play(row, maker, args.max_steps))
