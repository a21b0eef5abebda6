"""Write data/code.jsonl (tasks with tests of their programs) and data/programs.jsonl (tasks with programs).

A third of the programs belongs to another task, so a model trained on them is right two times in three. RL does the
rest and needs only the tests.
"""

import json
import random
from pathlib import Path

TASKS = {"largest": max, "smallest": min, "sum": sum}
PROGRAM = "print({}(map(int,input().split())))"

chance = random.Random(0)
tasks, programs = [], []
for index in range(240):
    name = chance.choice(sorted(TASKS))
    prompt = f"#{index} {name}\n"
    numbers = [[chance.randrange(100) for _ in range(4)] for _ in range(2)]
    tests = [{"stdin": " ".join(map(str, line)) + "\n", "stdout": f"{TASKS[name](line)}\n"} for line in numbers]
    tasks.append({"prompt": prompt, "answer": json.dumps({"stdio": tests})})
    taught = chance.choice(sorted(TASKS)) if index % 2 else name
    programs.append({"prompt": prompt, "answer": PROGRAM.format(TASKS[taught].__name__)})

Path("data").mkdir(exist_ok=True)
for name, rows in {"code": tasks, "programs": programs}.items():
    Path(f"data/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"data/{name}.jsonl:", len(rows), "rows, the first", json.dumps(rows[0]))
