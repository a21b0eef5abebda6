"""Writes data/chats.jsonl: 300 rows with a chat to learn from, and a better and a worse one."""

import json
import random
from pathlib import Path

chance = random.Random(0)
rows = []
for _ in range(300):
    number = chance.randrange(1000)
    question = {"role": "user", "content": f"What follows {number}?"}
    right, curt = ({"role": "assistant", "content": text} for text in (f"It is {number + 1}.", "No idea."))
    # The chats to learn from know two answers; of the pairs the right one is the better.
    learned = chance.choice([right, curt])
    rows.append({"messages": [question, learned], "chosen": [question, right], "rejected": [question, curt]})
Path("data").mkdir(exist_ok=True)
Path("data/chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
print("data/chats.jsonl:", len(rows), "rows, the first", json.dumps(rows[0]))
