"""The few small files by which agents of one attempt meet, carried between machines that share no folder.

Down to the others: where the head listens, that it has ended, that a node died. Up to the head: each agent's record,
and its events. Where the run directory is one folder on all machines there is nothing to carry.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slurm_rl.run_dir import AttemptDir, read_json, write_json


def files_for_all(attempt: AttemptDir) -> list[Path]:
    """What the agents of other nodes look for."""
    return [attempt.head, attempt.node(0), attempt.abort]


class Outbox:
    """Files whose newest contents are to be told once."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self._told: dict[Path, Any] = {}

    def news(self) -> Iterator[tuple[str, Any]]:
        """Name and contents of each file that has changed since the last call."""
        for path in self._paths:
            if not path.is_file():
                continue
            content = read_json(path)
            if self._told.get(path) != content:
                self._told[path] = content
                yield path.name, content


def take_file(attempt: AttemptDir, name: str, content: Any, allowed: list[Path]) -> None:
    """Write a file that came, if it is one of those that may."""
    path = attempt.path / name
    if path in allowed:
        write_json(path, content)
