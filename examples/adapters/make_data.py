"""Rows of the lake in data/lake.jsonl: each is a game from the first field, told apart by its number. The answers are
moves at random, by which a model that knows nothing learns what a move is."""

import json
import random
from pathlib import Path

random.seed(0)
Path("data").mkdir(exist_ok=True)
rows = [{"prompt": f"{number}:", "answer": random.choice("0123")} for number in range(100, 1000)]
Path("data/lake.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
