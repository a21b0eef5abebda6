"""Write data/first.jsonl for the initial model of the mixture: the calls of data/calls.jsonl, additions (every second
one is right), and games with random digits.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

NUM_ADDITIONS, NUM_GAMES = 500, 1500
rng = random.Random(0)


def add(place: int) -> dict[str, str]:
    a, b = rng.randint(0, 4), rng.randint(0, 4)
    return {"prompt": f"{a}+{b}=", "answer": str(a + b if place % 2 else rng.randint(0, 8))}


def guess(place: int) -> dict[str, str]:
    # Earlier turns, as the chat template of calls_tiny.yaml writes them.
    history = "".join(f"{rng.randint(1, 8)}<eos>{rng.choice('<>')}" for _ in range(place % 4))
    return {"prompt": f"{rng.randint(0, 999):03d}?{history}", "answer": str(rng.randint(1, 8))}


rows = [json.loads(line) for line in Path("data/calls.jsonl").read_text().splitlines()]
rows += [add(place) for place in range(NUM_ADDITIONS)] + [guess(place) for place in range(NUM_GAMES)]
path = Path("data/first.jsonl")
path.write_text("".join(json.dumps(row) + "\n" for row in rows))
print(f"{len(rows)} rows in {path}")
