"""Write data/lake.jsonl: games that start at the first field, distinguished by a number. The answers are random moves,
which teach an untrained model the format of a move.
"""

import json
import random
from pathlib import Path

random.seed(0)
Path("data").mkdir(exist_ok=True)
rows = [{"prompt": f"{number}:", "answer": random.choice("0123")} for number in range(100, 1000)]
Path("data/lake.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
