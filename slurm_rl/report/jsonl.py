"""Reading append-only files that another process may still be writing, or died while writing.

`run_dir.read_jsonl` trusts its file, as the trainer must. A report or a live display has to work on
whatever a crash left: a line that is not a JSON object is skipped, and a last line without its
newline is left for the next look.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def parse_row(line: bytes) -> Row | None:
    """The object on this line, or None when a crash cut or garbled it."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class JsonlTail:
    """Hands out the rows that were added since the last look.

    A file that was replaced (a resumed run rewinds it) is read again from its start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = -1
        self._offset = 0

    def read_new(self) -> list[Row]:
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            self._restart_when_replaced(os.fstat(file.fileno()))
            file.seek(self._offset)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [row for row in map(parse_row, whole.splitlines()) if row is not None]

    def _restart_when_replaced(self, found: os.stat_result) -> None:
        if found.st_ino != self._inode or found.st_size < self._offset:
            self._inode = found.st_ino
            self._offset = 0


def read_rows(path: Path) -> list[Row]:
    """Every row that can be read now; none when there is no such file yet."""
    return JsonlTail(path).read_new()
