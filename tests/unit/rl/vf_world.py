"""A user-defined environment of verifiers with a tool that adds numbers."""

from typing import Any

import verifiers as vf
from datasets import Dataset


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: First number.
        b: Second number.
    """
    return a + b


def load_environment(size: int = 3, group: bool = False) -> Any:
    rows = [{"question": f"{number} + 4?", "answer": str(number + 4)} for number in range(size)]

    async def right(completion: Any, answer: str) -> float:
        return float(str(completion[-1].content).strip() == answer)

    async def ranks(completions: Any) -> list[float]:
        return [0.0] * len(completions)

    rubric = vf.Rubric(funcs=[ranks if group else right])
    return vf.ToolEnv(dataset=Dataset.from_list(rows), tools=[add], rubric=rubric, max_turns=3)
