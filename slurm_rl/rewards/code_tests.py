"""The reference answer of the `code` verifier: the tests of the row, as JSON.

    {"stdio": [{"stdin": "2 3\\n", "stdout": "5\\n"}]}                      the completion is a program
    {"asserts": ["assert add(2, 3) == 5"], "functions": ["add"]}          it defines functions
    {"asserts": ["check(add)"], "setup": "def check(f): ...", "functions": ["add"]}

`setup` runs before each assert. `functions` names what the asserts may use of the code; they hand it plain
values (numbers, text, lists, dicts, ...) and get plain values back, or objects whose methods they may call.
Output is compared line by line, without blanks at the ends of lines and without blank lines at the end.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Self

from pydantic import ValidationError, model_validator

from slurm_rl.config.base import Section
from slurm_rl.errors import DataError

_FENCE = re.compile(r"^[ \t]*```[ \t]*(?P<language>[^\s`]*)[^\n`]*\n(?P<code>.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_PYTHON = {"", "py", "python", "python3"}


class StdioTest(Section):
    """One run of the program."""

    stdin: str
    """What it reads."""
    stdout: str
    """What it must write."""


class CodeTests(Section):
    """All tests of a row; see the module."""

    stdio: tuple[StdioTest, ...] = ()
    """Programs' inputs and outputs."""
    asserts: tuple[str, ...] = ()
    """Python statements, each a test of its own."""
    setup: str = ""
    """Python that runs before each assert."""
    functions: tuple[str, ...] = ()
    """Names of the code that the asserts use."""

    @model_validator(mode="after")
    def _something_to_test(self) -> Self:
        if not self.stdio and not self.asserts:
            raise ValueError("a row needs at least one test under stdio or asserts")
        if self.asserts and not self.functions:
            raise ValueError("asserts need the names of the functions that they test under functions")
        for text in (self.setup, *self.asserts):
            try:
                compile(f"{self.setup}\n{text}", "<check>", "exec")
            except (SyntaxError, ValueError) as error:
                raise ValueError(f"{text[:80]!r} is not Python: {error}") from None
        return self


@lru_cache(maxsize=256)
def parse_code_tests(answer: str) -> CodeTests:
    """Read the tests of a row; cached, since all completions of a group share them.

    Raises:
        DataError: the answer is not such JSON, so no completion could be judged by it.
    """
    try:
        return CodeTests.model_validate_json(answer)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        raise DataError(
            "the code verifier needs tests as reference answer, such as "
            '{"stdio": [{"stdin": "2 3\\n", "stdout": "5\\n"}]}',
            seen=f"{path + ': ' if path else ''}{first['msg']} in {_shorten(answer)}",
            action="correct the row; the forms are in the docstring of slurm_rl/rewards/code_tests.py",
        ) from None


def extract_code(completion: str) -> str:
    """The last fenced block of Python, or else the whole completion.

    >>> extract_code("So:\\n```python\\nprint(1)\\n```\\nDone.")
    'print(1)\\n'
    """
    blocks = [block["code"] for block in _FENCE.finditer(completion) if block["language"].lower() in _PYTHON]
    return blocks[-1] if blocks else completion


def same_output(seen: str, expected: str) -> bool:
    return _lines(seen) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:200] + "...")
