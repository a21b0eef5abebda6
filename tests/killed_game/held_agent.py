"""The game of examples/openai_program as a program that stays alive. Every turn leaves the traces of held.py and may be
held until the run is killed. A run has its copy (code/user_functions/<hash>/).
"""

import contextlib
import json
import os
import sys
import threading
import time
import urllib.request
import zlib
from pathlib import Path

_RUN = Path(__file__).parents[3]
SEEN = _RUN.with_name(f"{_RUN.name}-seen")


def complete(row: dict, messages: list) -> str:
    request = urllib.request.Request(
        f"{row['base_url']}/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"Authorization": f"Bearer {row['api_key']}"},
    )
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"].strip()


def leave_traces(call_id: str) -> None:
    with (SEEN / "calls").open("a") as calls:
        calls.write(f"{call_id}\n")
    (SEEN / "effects" / call_id).touch()
    seed, _, _, turn, checksum = call_id.split(".")
    while read("hold") == f"{seed} {turn}" and int(checksum, 16) % 2 == 0:
        note = SEEN / f"held-{os.getpid()}-{threading.get_ident()}"
        note.write_text(f"{seed} {turn} {os.getpid()}")
        note.replace(SEEN / "held")
        time.sleep(0.5)


def read(name: str) -> str:
    with contextlib.suppress(OSError):
        return (SEEN / name).read_text()
    return ""


def play(row: dict) -> float:
    secret, messages = int(row["answer"]), [{"role": "user", "content": row["prompt"]}]
    for turn in range(4):
        answer = complete(row, messages)
        name = f"{row['episode']}.{turn}"
        leave_traces(f"{name}.{zlib.crc32(f'{name}.{answer}'.encode()):08x}")
        guess = int(answer) if answer in set("12345678") else None
        if guess == secret:
            return 1.0
        hint = "!" if guess is None else "<" if secret < guess else ">"
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": hint}]
    return 0.0


def run(row: dict) -> None:
    sys.stdout.write(json.dumps({"episode": row["episode"], "reward": play(row)}) + "\n")
    sys.stdout.flush()


for line in sys.stdin:
    threading.Thread(target=run, args=(json.loads(line),)).start()
