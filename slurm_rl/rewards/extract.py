"""Extract the answer of a completion: the text after the reasoning, its program or its boxes."""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field

_REASONING_END = "</think>"


def drop_reasoning(completion: str) -> str:
    """Return the text after the last `</think>`, or the whole completion if there is none.

    >>> drop_reasoning("<think>3? no</think>4")
    '4'
    """
    return completion.rpartition(_REASONING_END)[2]


@dataclass
class _Block:
    language: str
    """Word after the fence, may be empty."""
    lines: list[str] = field(default_factory=list)

    @property
    def is_tagged(self) -> bool:
        return _PYTHON.fullmatch(self.language) is not None

    @property
    def code(self) -> str:
        """Text without the indentation of its first line (a block may be inside a list)."""
        first = next((line for line in self.lines if line.strip()), "")
        indent = first[: len(first) - len(first.lstrip())]
        return "".join(line.removeprefix(indent) + "\n" for line in self.lines)

    def may_be_python(self) -> bool:
        code = self.code.strip()
        return bool(code) and (self.is_tagged or not self.language) and not code.startswith(">>>")


def extract_code(completion: str, is_program: Callable[[str], bool]) -> str:
    """Return the program of a completion: a fenced block after the reasoning, or all of that text if it has none.

    Blocks that `is_program` accepts go before others, Python blocks before untagged ones, later before earlier ones.
    Blocks of other languages and interpreter sessions (`>>>`) do not count.

    >>> extract_code("So:\\n```python\\nprint(1)\\n```\\nIt prints:\\n```\\n1\\n```", lambda code: "print" in code)
    'print(1)\\n'
    """
    text = drop_reasoning(completion)
    head, blocks = _split_blocks(text)
    if blocks and not blocks[0].language and is_program(head) and _parses(head):  # the prompt opened this block
        _, blocks = _split_blocks("```python\n" + text)
    ranks = [
        (is_program(block.code), block.is_tagged, place) for place, block in enumerate(blocks) if block.may_be_python()
    ]
    return blocks[max(ranks)[2]].code if ranks else text


_FENCE = re.compile(r"(?P<lead>.*?)(?<![`~])(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[^\s`]*)[^`]*")
_LIST_ITEM = re.compile(r"\s*(?:(?:[-*+]|\d+[.)])\s+)*")
_PYTHON = re.compile(r"\{?\.?(?:py|python|pypy|cpython)[\d.]*\}?", re.IGNORECASE)


def _split_blocks(text: str) -> tuple[str, list[_Block]]:
    """Return the text before the first block, and the blocks; an unclosed one ends with the text."""
    head: list[str] = []
    blocks: list[_Block] = []
    fence = ""
    for line in text.split("\n"):
        found = _FENCE.fullmatch(line.rstrip())
        if fence and line.lstrip().startswith(fence):
            fence = ""
            if found is None or not _PYTHON.fullmatch(found["language"]):
                continue
        if fence:
            blocks[-1].lines.append(line)
        elif found is not None and _opens_block(found):
            fence = found["fence"]
            blocks.append(_Block(found["language"]))
        elif not blocks:
            head.append(line)
    if fence and blocks[-1].lines:  # unclosed, or closed behind the last line of code
        blocks[-1].lines[-1] = blocks[-1].lines[-1].rstrip().removesuffix(fence)
    return "\n".join(head), blocks


def _opens_block(found: re.Match[str]) -> bool:
    """Return whether a fence outside blocks opens one; after text it needs a tag or a preceding colon."""
    lead, language = found["lead"], found["language"]
    if _LIST_ITEM.fullmatch(lead) or _PYTHON.fullmatch(language):
        return True
    return not language and lead.rstrip().endswith(":")


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_TOKEN = re.compile(r"\\.|[{}]", re.DOTALL)
_JOINT = re.compile(
    r"(?=.*(?:[,;&]|and|or))"
    r"(?:[\s$,;&]|\\[()\[\],;: ]|\\q?quad|and|or|\\text\s*\{[\s,]*(?:and|or)\s*\}|[A-Za-z]\w?\s*=)*",
    re.DOTALL,
)
"""Separator between the boxes of one answer: a comma, "and" or "or", with at most `y =`."""
_LONGEST_JOINT = 80


def find_boxes(text: str) -> list[str]:
    r"""Return the contents of the last \boxed{} and of the boxes joined to it.

    Empty if there is no box, or if the last one is never closed: an earlier one may have been revoked.

    >>> find_boxes(r"\boxed{3}? No, $x = \boxed{\frac{1}{2}}$ or $\boxed{5}$")
    ['\\frac{1}{2}', '5']
    """
    boxes: list[str] = []
    end = 0
    for found in _BOX.finditer(text):
        if found.start() < end:  # inside another box
            continue
        if found.start() - end > _LONGEST_JOINT or not _JOINT.fullmatch(text, end, found.start()):
            boxes = []
        content, end = _read_group(text, found.end())
        if content is None:
            return []
        boxes.append(content)
    return boxes


def has_box(text: str) -> bool:
    return _BOX.search(text) is not None


def _read_group(text: str, start: int) -> tuple[str | None, int]:
    """Return the content of the braces at `start`, or the one character there; None if they are never closed."""
    if text[start : start + 1] != "{":
        return (text[start] if text[start : start + 1].isalnum() else None), start + 1
    depth = 0
    for token in _TOKEN.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0:
            return text[start + 1 : token.start()], token.end()
    return None, len(text)
