"""Write data/preferences.jsonl: 400 sums with a preferred answer and one that does not stop.

`answer`, which trains the initial policy, is one of the two.
"""

import json
import random
from pathlib import Path

chance = random.Random(0)
rows = []
for first, second in chance.sample([(a, b) for a in range(40) for b in range(40)], 400):
    brief, long = f"{first + second}", f"{first + second}="
    answer = chance.choice([brief, long])
    rows.append({"prompt": f"{first}+{second}=", "answer": answer, "chosen": brief, "rejected": long})
Path("data").mkdir(exist_ok=True)
Path("data/preferences.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
print("data/preferences.jsonl:", len(rows), "rows, the first", json.dumps(rows[0]))
