"""Write data/words.jsonl: 2000 rows of a prompt and its answer, a reversed word."""

import json
import random
from pathlib import Path

chance = random.Random(0)
words = sorted({"".join(chance.choices("aeionrst", k=4)) for _ in range(8000)})
rows = [{"prompt": f"{word}:", "answer": word[::-1]} for word in chance.sample(words, 2000)]
Path("data").mkdir(exist_ok=True)
Path("data/words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
print("data/words.jsonl:", len(rows), "rows, the first", json.dumps(rows[0]))
