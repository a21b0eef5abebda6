"""The rooms of slurm_rl: their ranks, what they import, and the picture of both in docs/architecture.md.

    python -m tests.rooms        draws the picture anew

A room is a folder of slurm_rl, or a file in it, or one of launchers/ and plugins/. It imports rooms before it alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import slurm_rl

PACKAGE = Path(slurm_rl.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
# From the ground up.
ROOMS = [
    "errors", "disk", "hang", "meter", "jsonl", "holder", "lease", "filesystem", "run_dir", "run_secret",
    "strangers", "wire", "functions", "plugins_peaks", "config", "external", "plan", "plugins", "node", "image",
    "goodput", "report", "job",
    "sweep", "launchers", "launchers_protocol", "launchers_session", "launchers_here",
    "launchers_slurm", "launchers_machines", "launchers_ray", "launchers_jobs",
    "plugins_health",
    "export", "site",
    "math", "data", "checkpoints", "engine", "rewards", "envs", "endpoint", "train", "supervised", "rl", "prepare",
    "runs", "__init__", "cli", "__main__",
]  # fmt: skip
RANK = {room: rank for rank, room in enumerate(ROOMS)}
LAUNCHERS = {"launchers_slurm", "launchers_machines", "launchers_ray"}
"""None of them imports another: a new one is a folder beside them."""
TRAINING = {"math", "data", "checkpoints", "engine", "rewards", "envs", "endpoint", "train", "supervised", "rl"}
"""Rooms that need torch; all others import without it."""
_BEGIN, _END = "<!-- rooms: made by `python -m tests.rooms` -->\n", "<!-- end of rooms -->\n"


def room_of(path: Path) -> str:
    return _room(path.relative_to(PACKAGE).with_suffix("").parts)


def _room(parts: Sequence[str]) -> str:
    is_split = parts[0] in ("launchers", "plugins") and len(parts) > 1 and parts[1] != "__init__"
    return "_".join(parts[:2]) if is_split else parts[0]


def imported_rooms(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            # What is imported may be a module.
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return {_room(name.split(".")[1:]) for name in names if name.startswith("slurm_rl.")} & set(ROOMS) - {room_of(path)}


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
    """The picture."""
    graph = {room: below - {"__init__"} for room, below in imports().items() if not room.startswith("__")}
    arrows = [f"    {room} --> {to}" for room, below in reduce_imports(graph).items() for to in sorted(below)]
    return "\n".join(["```mermaid", "graph TD", *arrows, "```", ""])


def write() -> None:
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    PAGE.write_text(before + _BEGIN + render() + _END + rest.partition(_END)[2])


def read_arrows(text: str) -> set[str]:
    """Of the page's picture."""
    return set(re.findall(r"^ +(\w+ --> \w+)$", text, re.MULTILINE))


if __name__ == "__main__":
    write()
