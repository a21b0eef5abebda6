"""Client of the endpoint for adapters, standard library only: rows in, replies, rewards out."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Truncated(Exception):
    """The episode has reached a limit of the run; its reward so far counts."""


def ask(row: dict[str, Any], messages: list[dict[str, str]]) -> str:
    """The policy's reply to a dialogue of the row's episode.

    Raises:
        Truncated: there is none any more.
        RuntimeError: the endpoint's refusal, in its words.
    """
    request = urllib.request.Request(
        f"{row['base_url']}/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"Authorization": f"Bearer {row['api_key']}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return str(json.load(answer)["choices"][0]["message"]["content"])
    except urllib.error.HTTPError as refused:
        error = json.load(refused)["error"]
        if error["code"] in ("turn_limit", "context_length_exceeded"):
            raise Truncated(error["message"]) from None
        raise RuntimeError(error["message"]) from None


def find_in_file(word: str) -> Any:
    """Return the object that `file.py:name` names; None for another form."""
    file, _, name = word.rpartition(":")
    if not file.endswith(".py"):
        return None
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def numbers_of(metrics: dict[str, Any]) -> dict[str, float]:
    """Return those that can be averaged."""
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}


def serve(play: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Play the rows of standard input, one thread per row, and print each result. Other output goes to stderr.

    Args:
        play: maps a row to `reward` and `scores`.
    """
    out, lock = sys.stdout, threading.Lock()
    sys.stdout = sys.stderr

    def run(row: dict[str, Any]) -> None:
        try:
            verdict = play(row)
        except BaseException as error:  # the environment is of others, and may call sys.exit
            verdict = {"error": f"{type(error).__name__}: {error}"}
        with lock:
            out.write(json.dumps({"episode": row["episode"], **verdict}) + "\n")
            out.flush()

    for line in sys.stdin:
        threading.Thread(target=run, args=(json.loads(line),), daemon=True).start()


def write_rows(rows: list[dict[str, Any]]) -> None:
    """Rows for data.train, to standard output."""
    for row in rows:
        print(json.dumps(row))
