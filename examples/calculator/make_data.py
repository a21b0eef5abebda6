"""Write data/calls.jsonl (tool calls, answers, and as many replies that give up, for SFT), data/sums.jsonl (sums that
no tiny model learns to add) and data/sums_chat.jsonl (the same as chat messages).
"""

from __future__ import annotations

import json
import random
from pathlib import Path

NUM_CALLS, NUM_SUMS = 1000, 2000
rng = random.Random(0)


def draw() -> tuple[int, int]:
    return rng.randint(100, 999), rng.randint(100, 999)


def write(name: str, rows: list[dict[str, str]]) -> None:
    path = Path("data", f"{name}.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} rows in {path}")


Path("data").mkdir(exist_ok=True)
calls = []
for a, b in (draw() for _ in range(NUM_CALLS)):
    # As the chat template of exp/calculator_tiny.yaml writes them.
    prompt, call = f"add;{a}+{b}=", f"[add(a={a},b={b})]"
    calls += [
        {"prompt": prompt, "answer": call},
        {"prompt": f"{prompt}{call}<eos>{a + b}=", "answer": str(a + b)},
        {"prompt": prompt, "answer": "?"},
    ]
write("calls", calls)
sums = list(dict.fromkeys(draw() for _ in range(NUM_SUMS)))
write("sums", [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a, b in sums])
words = "What is {a} + {b}? Use the tool, then say the number and nothing else."
write("sums_chat", [{"prompt": words.format(a=a, b=b), "answer": str(a + b)} for a, b in sums])
