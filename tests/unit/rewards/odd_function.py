"""A reward function that misbehaves as the completion requests; workers load it from its file."""

import os
from typing import Any


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> Any:
    """Return label / 8 by default, which identifies the item, and log the length."""
    completion = queries[0].removeprefix(prompts[0])
    if completion == "hang":
        while True:
            pass
    if completion == "exit":
        os._exit(3)
    if completion == "nan":
        return [float("nan")]
    return {"rewards": [int(labels[0]) / 8], "scores": [1.0], "extra_logs": {"length": [len(completion)]}}


def plain(queries: list[str], prompts: list[str], labels: list[str]) -> Any:
    assert len(queries) == len(prompts) == len(labels) == 1
    return [float(queries == [prompts[0] + labels[0]]) * 3 - 1]
