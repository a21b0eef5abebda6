"""How large slurm_rl is: code without blank lines, comments and docstrings.

python -m tests.size        files and lines of code by room, the longest files and functions
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

from tests.rooms import PACKAGE, RANK, room_of

_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines_of_code(text: str) -> set[int]:
    """The numbers of the lines that hold code.

    >>> sorted(lines_of_code('\"\"\"A page.\"\"\"\\nx = 1  # one\\n\\n# none\\ny = 2\\n'))
    [2, 5]
    """
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        # A string that stands alone explains; nothing reads it.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, node.end_lineno or node.lineno) or [node.lineno]) | {node.end_lineno or 0}
    return lines


def functions(path: Path) -> list[tuple[int, str]]:
    """Length from `def` to the last line, and name."""
    return [
        ((node.end_lineno or node.lineno) - node.lineno + 1, f"{path.relative_to(PACKAGE)}: {node.name}")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, _Function)
    ]


def main() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    files = Counter(room_of(path) for path in paths)
    code = Counter[str]()
    for path in paths:
        code[room_of(path)] += len(lines_of_code(path.read_text()))
    print("files   code  room")
    for room in RANK:
        print(f"{files[room]:5} {code[room]:6}  {room}")
    print(f"{files.total():5} {code.total():6}  slurm_rl")
    longest = sorted((len(path.read_text().splitlines()), str(path.relative_to(PACKAGE))) for path in paths)[-8:]
    print("\nlongest files", *(f"{length:5}  {name}" for length, name in reversed(longest)), sep="\n")
    found = sorted(function for path in paths for function in functions(path))[-8:]
    print("\nlongest functions", *(f"{length:5}  {name}" for length, name in reversed(found)), sep="\n")


if __name__ == "__main__":
    main()
