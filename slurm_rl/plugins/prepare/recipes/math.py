"""MATH: competition mathematics with LaTeX answers. https://arxiv.org/abs/2103.03874"""

from slurm_rl.plugins.prepare.dataset import (
    BOXED,
    DatasetRecipe,
    Question,
    Row,
    VerlForm,
    Workspace,
    drop_unscorable,
    read_splits,
    write_rows,
)
from slurm_rl.plugins.prepare.manifest import Output


def build(work: Workspace) -> list[Output]:
    outputs = []
    for split, rows in read_splits(work, "math", ("problem", "solution", "level", "type"), _convert):
        good = drop_unscorable(f"math {split}", rows, work.bad_rows, work.say)
        outputs.append(write_rows(work.folder, f"{split}.jsonl", good))
    return outputs


def _convert(row: Row) -> Row | str:
    problem, solution = row["problem"], row["solution"]
    answer = find_boxed(solution) if isinstance(solution, str) else ""
    if not isinstance(problem, str) or not problem.strip():
        return "column 'problem' has no text"
    if not answer:
        return "column 'solution' has no \\boxed answer"
    return {"prompt": problem.strip() + BOXED, "answer": f"${answer}$", "level": row["level"], "type": row["type"]}


def _convert_for_verl(row: Row) -> Question | str:
    made = _convert({**row, "level": None, "type": None})
    if isinstance(made, str):
        return made
    return Question(text=row["problem"], answer=made["answer"][1:-1], solution=row["solution"])


def find_boxed(solution: str) -> str:
    r"""What is in the last \boxed or \fbox; "" when there is none, or its braces do not close.

    >>> find_boxed(r"so \boxed{1} or rather \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    >>> find_boxed(r"so \boxed 7.")
    '7'
    """
    start = max(solution.rfind("\\boxed"), solution.rfind("\\fbox"))
    if start < 0:
        return ""
    rest = solution[start:].removeprefix("\\boxed").removeprefix("\\fbox").lstrip()
    if not rest.startswith("{"):
        return rest[:1].strip("$.")  # TeX takes the next character alone
    depth = 0
    for end, character in enumerate(rest):
        escaped = end > 0 and rest[end - 1] == "\\"
        depth += 0 if escaped else {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return rest[1:end].strip()
    return ""


RECIPE = DatasetRecipe(
    name="math",
    about="MATH, 7,500 + 5,000 competition problems",
    repo="EleutherAI/hendrycks_math",
    files=("*/train-*.parquet", "*/test-*.parquet"),
    build=build,
    verl=VerlForm(
        data_source="DigitalLearningGmbH/MATH-lighteval",
        instruction="Let's think step by step and output the final answer within \\boxed{}.",
        columns=("problem", "solution"),
        convert=_convert_for_verl,
    ),
)
