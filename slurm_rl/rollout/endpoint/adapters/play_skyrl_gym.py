"""Play environments of skyrl-gym, by registered name or as a class in a file.

    env.agent_command=[/envs/sg/bin/python, adapter:skyrl_gym, gsm8k_multi_turn] env.agent_rows_per_process=64
        data.info_keys=[reward_spec,extra_info]

The extras of an environment are the row's columns in `data.info_keys`, plus --max-turns. The reward is the sum over the
steps; a reply that the environment rewrites continues in its rewritten form.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import skyrl_gym
from endpoint_client import Truncated, ask, find_in_file, numbers_of, serve
from omegaconf import OmegaConf

Maker = Callable[[dict[str, Any]], Any]
"""Makes the environment of these extras."""


def find_maker(name: str, words: dict[str, Any], max_turns: int | None) -> Maker:
    cls, config = find_in_file(name), OmegaConf.create(words)
    more = {} if max_turns is None else {"max_turns": max_turns}
    if cls is None:
        return lambda extras: skyrl_gym.make(name, env_config=config, extras={**extras, **more})
    return lambda extras: cls(env_config=config, extras={**extras, **more})


def play(row: dict[str, Any], make: Maker) -> dict[str, Any]:
    world, total, done = make(row["info"]), 0.0, False
    try:
        messages, _ = world.init(list(row["messages"] or [{"role": "user", "content": row["prompt"]}]))
        while not done:
            reply = ask(row, messages)
            step = world.step(reply)
            total, done = total + float(step["reward"]), bool(step["done"])
            said = step.get("postprocessed_action") or reply
            messages = [*messages, {"role": "assistant", "content": said}, *step["observations"]]
        return {"reward": total, "scores": numbers_of(world.get_metrics())}
    except Truncated:
        return {"reward": total, "scores": numbers_of(world.get_metrics())}
    finally:
        world.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name", help="a registered name, or file.py:Class")
    parser.add_argument("--words", type=json.loads, default={}, help="its env_config, as a JSON object")
    parser.add_argument("--max-turns", type=int)
    args = parser.parse_args()
    maker = find_maker(args.name, args.words, args.max_turns)
    serve(lambda row: play(row, maker))
