"""Parse the docs: code blocks with their marks, tables, test paths.

Commands are fenced as `bash` (one per line) or `console` (lines after `$ `; the rest is output). A fence with
title="name" is a file in the folder of the page's commands. A mark is a comment above a block:

    <!-- run by tests/slurm/test_grpo.py::test_name -->     this test runs it
    <!-- not run: it fetches 30 MB -->                      no test runs it, and why
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.lock import ROOT

DOCS = ROOT / "docs"
_FENCE = re.compile(r"^(?P<indent> *)(?P<marks>```+)(?P<language>[\w-]*)(?P<info>.*)$")
_TITLE = re.compile(r'title="(?P<title>[^"]+)"')
_MARK = re.compile(r"^<!-- (run by|not run:) (.+) -->$")
OF_COMMANDS = ("bash", "console")


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: Path
    line: int
    """Line number of its fence, from 1."""
    language: str
    title: str | None
    text: str
    mark: tuple[str, str] | None
    """(`run by` or `not run:`, the rest of the comment)."""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> list[list[str]]:
        """Return the words of each command, without comments and redirections."""
        text = self.text.replace("\\\n", " ")
        lines = [line.strip() for line in text.splitlines()]
        if self.language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        found = [shlex.split(line, comments=True) for line in lines]
        return [_before_redirection(words) for words in found if words]


def pages() -> list[Path]:
    """Return README.md and the site's pages; tests/examples runs those of examples/."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def read_blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opened = _FENCE.match(lines[number])
        if opened is None:
            number += 1
            continue
        end = next(place for place in range(number + 1, len(lines)) if lines[place].strip() == opened["marks"])
        title, cut = _TITLE.search(opened["info"]), len(opened["indent"])
        text = "".join(f"{line[cut:]}\n" for line in lines[number + 1 : end])
        yield Block(page, number + 1, opened["language"], title and title["title"], text, _mark_above(lines, number))
        number = end + 1


def read_prose(page: Path) -> list[tuple[int, str]]:
    """Return (line number from 1, text) of the lines outside fences."""
    inside, found = False, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if _FENCE.match(line) or line.strip() == "```":
            inside = not inside
        elif not inside:
            found.append((number, line))
    return found


def read_tables(page: Path) -> list[list[str]]:
    """Return the cells of all table rows without headers."""
    found: list[list[str]] = []
    for _, line in read_prose(page):
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if all(set(cell) <= set("-: ") for cell in cells):
            found.pop()
        else:
            found.append(cells)
    return found


def code_spans(cell: str) -> list[str]:
    """Return the texts between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def _mark_above(lines: list[str], number: int) -> tuple[str, str] | None:
    above = [line.strip() for line in lines[max(number - 2, 0) : number] if line.strip()]
    found = _MARK.match(above[-1]) if above else None
    return (found[1], found[2]) if found else None


def _before_redirection(words: list[str]) -> list[str]:
    cut = next((place for place, word in enumerate(words) if word in (">", ">>", "|", "&&", ";")), len(words))
    return words[:cut]
