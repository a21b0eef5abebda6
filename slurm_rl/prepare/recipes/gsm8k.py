"""GSM8K: grade-school word problems with integer answers. https://arxiv.org/abs/2110.14168"""

from __future__ import annotations

import re
from typing import Any

from slurm_rl.prepare.dataset import BOXED, DatasetRecipe, Workspace, read_parquet, write_rows
from slurm_rl.prepare.manifest import Output

_FINAL = re.compile(r"####\s*(-?[0-9][0-9,]*(?:\.[0-9]+)?)\s*\Z")
"""A solution ends with its answer: `#### 1,080`."""


def build(work: Workspace) -> list[Output]:
    return [_build_split(work, split) for split in ("train", "test")]


def _build_split(work: Workspace, split: str) -> Output:
    rows: list[dict[str, Any]] = []
    for name, path in sorted(work.sources.items()):
        if not name.startswith(f"main/{split}-"):
            continue
        for number, row in read_parquet(path, ("question", "answer")):
            question, solution = row["question"], row["answer"]
            final = _FINAL.search(solution) if isinstance(solution, str) else None
            if not isinstance(question, str) or not question.strip():
                work.bad_rows.add(f"{name} row {number}", "column 'question' has no text")
            elif final is None:
                work.bad_rows.add(f"{name} row {number}", "column 'answer' does not end with #### and a number")
            else:
                rows.append({"prompt": question.strip() + BOXED, "answer": final[1].replace(",", "")})
    work.bad_rows.check(f"gsm8k {split}", len(rows))
    return write_rows(work.folder, f"{split}.jsonl", rows)


RECIPE = DatasetRecipe(
    name="gsm8k",
    about="GSM8K, 7,473 + 1,319 word problems",
    repo="openai/gsm8k",
    files=("main/train-*.parquet", "main/test-*.parquet"),
    build=build,
)
