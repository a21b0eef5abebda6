"""Write a thousand rows with a digit from 1 to 8 that the prompts do not contain: data/digits.jsonl for the tiny model,
data/digits_chat.jsonl as chat messages.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

WORDS = (
    "Game {number}: I think of a digit from 1 to 8, and you have four guesses. Say one digit and nothing else. "
    "I answer < when mine is smaller, > when it is larger, ! when you said no digit."
)

rng = random.Random(0)
digits = [str(rng.randint(1, 8)) for _ in range(1000)]
Path("data").mkdir(exist_ok=True)
for name, words in (("digits", "{number:03d}?"), ("digits_chat", WORDS)):
    rows = [{"prompt": words.format(number=number), "answer": digit} for number, digit in enumerate(digits)]
    path = Path("data", f"{name}.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} rows in {path}")
