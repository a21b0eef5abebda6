"""Write data/chats.jsonl: 300 rows with a chat for SFT, and a chosen and a rejected chat."""

import json
import random
from pathlib import Path

chance = random.Random(0)
rows = []
for _ in range(300):
    number = chance.randrange(1000)
    question = {"role": "user", "content": f"What follows {number}?"}
    right, curt = ({"role": "assistant", "content": text} for text in (f"It is {number + 1}.", "No idea."))
    # SFT learns both answers; the pairs prefer the right one.
    learned = chance.choice([right, curt])
    rows.append({"messages": [question, learned], "chosen": [question, right], "rejected": [question, curt]})
Path("data").mkdir(exist_ok=True)
Path("data/chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
print("data/chats.jsonl:", len(rows), "rows, the first", json.dumps(rows[0]))
