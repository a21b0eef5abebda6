"""What every adapter needs of the endpoint, in the standard library alone: rows in, replies, verdicts out."""

from __future__ import annotations

import json
import sys
import threading
import urllib.request
from collections.abc import Callable
from typing import Any


def ask(row: dict[str, Any], messages: list[dict[str, str]]) -> str:
    """The policy's reply to a dialogue of the row's episode."""
    request = urllib.request.Request(
        f"{row['base_url']}/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"Authorization": f"Bearer {row['api_key']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def serve(play: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Play the rows of standard input, each in a thread, and say what came of each; nothing else may print there.

    Args:
        play: from a row to `reward` and `scores`.
    """
    out, lock = sys.stdout, threading.Lock()
    sys.stdout = sys.stderr

    def run(row: dict[str, Any]) -> None:
        try:
            verdict = play(row)
        except Exception as error:  # the environment is of others
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
