"""Write data/squares: pictures of one to four squares, and 64 chat rows that ask for their number.

A row shows one picture, two, or none. Picture paths are relative to the file with the rows.
"""

import json
import random
from pathlib import Path

from PIL import Image, ImageDraw

SYSTEM = {"role": "system", "content": "Solve it. Write <think> .. </think><answer> .. </answer>."}
SIZES = [(60, 60), (120, 50), (50, 110)]

chance = random.Random(0)
folder = Path("data/squares")
(folder / "images").mkdir(parents=True, exist_ok=True)
pictures = {}
for index in range(12):
    picture = Image.new("RGB", SIZES[index % 3], "white")
    pictures[f"images/{index}.png"] = number = index % 4 + 1
    for corner in chance.sample([(x, y) for x in (4, 24) for y in (4, 24)], number):
        ImageDraw.Draw(picture).rectangle((*corner, corner[0] + 14, corner[1] + 14), fill="navy")
    picture.save(folder / f"images/{index}.png")

lines = []
for index in range(64):
    shown = chance.sample(sorted(pictures), [1, 2, 1, 0][index % 4])
    numbers = [pictures[path] for path in shown] or [chance.randint(1, 2), chance.randint(1, 2)]
    question = "How many squares?" if shown else "How much is {} + {}?".format(*numbers)
    content = [*({"type": "image", "image": path} for path in shown), {"type": "text", "text": question}]
    prompt = [SYSTEM, {"role": "user", "content": content}]
    lines.append(json.dumps({"prompt": prompt, "answer": f"$\\boxed{{{sum(numbers)}}}$"}) + "\n")
(folder / "train.jsonl").write_text("".join(lines))
print(folder / "train.jsonl", len(lines), "rows, the first", lines[0].strip())
