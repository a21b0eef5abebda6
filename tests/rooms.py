"""The rooms of slurm_rl: their ranks, what they import, and the picture of both in docs/architecture.md.

    python -m tests.rooms        draws the picture anew

A room is a folder of slurm_rl, or a file in it. It imports rooms before it alone.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import slurm_rl

PACKAGE = Path(slurm_rl.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
# From the ground up.
ROOMS: list[str | tuple[str, ...]] = [
    "errors", "disk", "jsonl", "holder", "lease", "filesystem", "run_dir", "run_secret", "strangers", "__init__",
    "functions", "config", "external", "plan", "node", "image", "report", "job",
    "sweep", "launchers", "slurm", "ray_jobs", "export",
    "math", "data", "checkpoints", "engine", "rewards", "train", "supervised", "rl", "prepare", "cli", "__main__",
]  # fmt: skip
RANK = {room: rank for rank, at in enumerate(ROOMS) for room in ([at] if isinstance(at, str) else at)}
TRAINING = {"math", "data", "checkpoints", "engine", "rewards", "train", "supervised", "rl"}
"""Rooms that need torch; all others import without it."""
_BEGIN, _END = "<!-- rooms: made by `python -m tests.rooms` -->\n", "<!-- end of rooms -->\n"


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return {name.split(".")[1] for name in names if name.startswith("slurm_rl.")} - {room_of(path)}


def imports() -> dict[str, set[str]]:
    """Room -> the rooms that it imports."""
    found: dict[str, set[str]] = {room: set() for room in RANK}
    for path in PACKAGE.rglob("*.py"):
        found[room_of(path)] |= imported_rooms(path)
    return found


def reduce_imports(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Without what follows from others: a picture of all arrows shows nothing.

    >>> reduce_imports({"a": set(), "b": {"a"}, "c": {"a", "b"}})
    {'a': set(), 'b': {'a'}, 'c': {'b'}}
    """

    def reaches(start: str, end: str, seen: set[str]) -> bool:
        return any(
            room == end or (room not in seen and reaches(room, end, seen | {room})) for room in graph.get(start, ())
        )

    return {
        room: {to for to in below if not any(reaches(other, to, {room, other}) for other in below - {to})}
        for room, below in graph.items()
    }


def render() -> str:
    """The picture. Rooms that import each other stand in one box."""
    boxes = {
        room: at if isinstance(at, str) else "_".join(at)
        for at in ROOMS
        for room in ([at] if isinstance(at, str) else at)
    }
    graph: dict[str, set[str]] = {box: set() for room, box in boxes.items() if not room.startswith("__")}
    for room, below in imports().items():
        if boxes[room] in graph:
            graph[boxes[room]] |= {boxes[to] for to in below} - {boxes[room], "__init__"}
    arrows = [f"    {box} --> {to}" for box, below in reduce_imports(graph).items() for to in sorted(below)]
    return "\n".join(["```mermaid", "graph TD", *arrows, "```", ""])


def write() -> None:
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    PAGE.write_text(before + _BEGIN + render() + _END + rest.partition(_END)[2])


def read_arrows(text: str) -> set[str]:
    """Of the page's picture."""
    return set(re.findall(r"^ +(\w+ --> \w+)$", text, re.MULTILINE))


if __name__ == "__main__":
    write()
