"""Environments of the package verifiers, as `verifiers.load_environment` finds them or such a function in a file makes
them: rows of its data set, played by its own rollout against the run's endpoint, scored by its own rubric.

    python play_verifiers.py rows my-env 1000 --words '{"level": 2}' > rows.jsonl
    env.agent_command=[/envs/vf/bin/python, adapter:verifiers, my-env, --words, '{"level": 2}']
        env.agent_rows_per_process=64 data.info_keys=[input]

A rollout that ended in an error has failed; one that is too long for the model, or that the policy ended by an empty
reply, is scored as it is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
from functools import cache
from typing import Any

import verifiers
from endpoint_client import find_in_file, numbers_of, serve, write_rows
from openai import AsyncOpenAI, DefaultAsyncHttpxClient


def load(name: str, words: dict[str, Any]) -> Any:
    make = find_in_file(name)
    return verifiers.load_environment(name, **words) if make is None else make(**words)


def make_rows(world: Any, size: int) -> list[dict[str, Any]]:
    """Return its training rows with prompts as messages."""
    return [
        {"prompt": without_nulls(row["prompt"]), "answer": str(row.get("answer") or ""), "input": row}
        for row in world.get_dataset(size).to_list()
    ]


def without_nulls(prompt: Any) -> Any:
    """Arrow gives every message all the keys that any has."""
    if not isinstance(prompt, list):
        return prompt
    return [{key: value for key, value in message.items() if value is not None} for message in prompt]


@cache
def connections() -> DefaultAsyncHttpxClient:
    """Return the shared HTTP client; creating one takes 50 ms, and episodes differ only in their key."""
    return DefaultAsyncHttpxClient(timeout=None)


async def play(row: dict[str, Any], world: Any) -> dict[str, Any]:
    client = AsyncOpenAI(base_url=row["base_url"], api_key=row["api_key"], timeout=None, http_client=connections())
    ask = verifiers.OpenAIChatCompletionsClient(client)
    # A retry of the whole rollout would be a second episode.
    said = await world.run_rollout(row["info"]["input"], ask, "policy", {}, max_retries=0)
    error = said.get("error")
    # verifiers plays on from no empty reply, which is the policy's own doing and no failure of the environment.
    if error is not None and error["error"] != "EmptyModelResponseError":
        raise RuntimeError(str(error))
    return {"reward": said["reward"], "scores": numbers_of(said.get("metrics") or {})}


def check(world: Any) -> None:
    """ValueError: it compares several rollouts; only single rollouts are supported."""
    if world.requires_group_rollouts:
        raise ValueError("its rubric scores groups of rollouts, and a program plays one")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", help="the environment's name, file.py:load_environment, or `rows` to write rows")
    parser.add_argument("name", nargs="?", help="of `rows`")
    parser.add_argument("size", nargs="?", type=int, default=-1)
    parser.add_argument("--words", type=json.loads, default={}, help="arguments of load_environment, as a JSON object")
    args = parser.parse_args()
    writes = args.what == "rows"
    loaded = load(args.name if writes else args.what, args.words)
    if writes:
        write_rows(make_rows(loaded, args.size))
    else:
        check(loaded)
        # One event loop for all episodes: locks of an environment belong to its first loop.
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        serve(lambda row: asyncio.run_coroutine_threadsafe(play(row, loaded), loop).result())
