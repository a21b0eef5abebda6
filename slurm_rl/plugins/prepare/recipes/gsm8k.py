"""GSM8K: grade-school word problems with integer answers. https://arxiv.org/abs/2110.14168"""

import re

from slurm_rl.plugins.prepare.dataset import (
    BOXED,
    DatasetRecipe,
    Question,
    Row,
    VerlForm,
    Workspace,
    read_splits,
    write_rows,
)
from slurm_rl.plugins.prepare.manifest import Output

_FINAL = re.compile(r"####\s*(-?[0-9][0-9,]*(?:\.[0-9]+)?)\s*\Z")
"""A solution ends with its answer: `#### 1,080`."""


def build(work: Workspace) -> list[Output]:
    splits = read_splits(work, "gsm8k", ("question", "answer"), _convert)
    return [write_rows(work.folder, f"{split}.jsonl", [row for _, row in rows]) for split, rows in splits]


def _convert(row: Row) -> Row | str:
    question, solution = row["question"], row["answer"]
    final = _FINAL.search(solution) if isinstance(solution, str) else None
    if not isinstance(question, str) or not question.strip():
        return "column 'question' has no text"
    if final is None:
        return "column 'answer' does not end with #### and a number"
    return {"prompt": question.strip() + BOXED, "answer": final[1].replace(",", "")}


def _convert_for_verl(row: Row) -> Question | str:
    made = _convert(row)
    return (
        made if isinstance(made, str) else Question(text=row["question"], answer=made["answer"], solution=row["answer"])
    )


RECIPE = DatasetRecipe(
    name="gsm8k",
    about="GSM8K, 7,473 + 1,319 word problems",
    repo="openai/gsm8k",
    files=("main/train-*.parquet", "main/test-*.parquet"),
    build=build,
    verl=VerlForm(
        data_source="openai/gsm8k",
        instruction='Let\'s think step by step and output the final answer after "####".',
        columns=("question", "answer"),
        convert=_convert_for_verl,
    ),
)
