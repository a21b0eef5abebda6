"""Tasks of reasoning-gym: its data sets make the rows, and score the answers.

python play_reasoning_gym.py rows spell_backward 1000 --words '{"max_word_len": 5}' > rows.jsonl
env.agent_command=[/envs/rg/bin/python, adapter:reasoning_gym] env.agent_rows_per_process=64 data.info_keys=[entry]
"""

from __future__ import annotations

import argparse
import json
import re
from functools import cache
from typing import Any

import reasoning_gym
from endpoint_client import ask, serve, write_rows


@cache
def load(name: str) -> Any:
    """Return the data set of a task; scoring uses only the entry."""
    return reasoning_gym.create_dataset(name, size=1, seed=0)


def make_rows(name: str, size: int, seed: int, head: str, words: dict[str, Any]) -> list[dict[str, Any]]:
    found = reasoning_gym.create_dataset(name, size=size, seed=seed, **words)
    return [
        {"prompt": head + entry["question"], "answer": entry["answer"] or "", "entry": {"task": name, **entry}}
        for entry in found
    ]


def read_answer(reply: str) -> str:
    """Return the text between the last <answer> and </answer>; without tags the whole text."""
    found = re.findall(r"<answer>(.*?)</answer>", reply, re.DOTALL)
    return (found[-1] if found else reply).strip()


def play(row: dict[str, Any]) -> dict[str, Any]:
    entry = row["info"]["entry"]
    reply = ask(row, row["messages"] or [{"role": "user", "content": row["prompt"]}])
    return {"reward": float(load(entry["task"]).score_answer(read_answer(reply), entry))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="?", help="`rows` writes rows instead of playing")
    parser.add_argument("task", nargs="?")
    parser.add_argument("size", nargs="?", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--head", default="", help="text before each question")
    parser.add_argument("--words", type=json.loads, default={}, help="arguments of the task, as a JSON object")
    args = parser.parse_args()
    if args.rows is None:
        serve(play)
    else:
        write_rows(make_rows(args.task, args.size, args.seed, args.head, args.words))
