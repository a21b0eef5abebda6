"""Writes data/digits.jsonl: 1000 rows with a digit from 1 to 8 to be guessed. The prompts tell nothing of it."""

from __future__ import annotations

import json
import random
from pathlib import Path

rng = random.Random(0)
rows = [{"prompt": f"{number:03d}?", "answer": str(rng.randint(1, 8))} for number in range(1000)]
path = Path("data/digits.jsonl")
path.parent.mkdir(exist_ok=True)
path.write_text("".join(json.dumps(row) + "\n" for row in rows))
print(f"{len(rows)} rows in {path}")
