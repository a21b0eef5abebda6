"""Box the answers of rows for a warm-up with SFT: python examples/gsm8k/box.py data/gsm8k

A model that follows instructions needs no warm-up: it boxes its answer because the prompt asks for it.
"""

import json
import sys
from pathlib import Path

folder = Path(sys.argv[1])
for split in ("train", "test"):
    rows = [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]
    boxed = [row | {"answer": f"\\boxed{{{row['answer']}}}"} for row in rows]
    (folder / f"boxed_{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in boxed))
    print(folder / f"boxed_{split}.jsonl", len(boxed), "rows, the first answer", boxed[0]["answer"])
