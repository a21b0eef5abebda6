"""Poll a run from outside and record when each of its signs first appeared.

Times are from this process's clock, since a node's clock may have been shifted.
"""

import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir, read_json

_LOOK_S, _ASK_S = 0.1, 1.0
_ENDING = ("ending", "ended")


@dataclass(frozen=True)
class Sign:
    """An observable sign of a run.

    >>> Sign(12.5, "node/died", 3, {"cause": "n2: Killed"}).what
    'node/died'
    """

    time: float
    what: str
    """Kind of an event; `record/ending` of a node agent, `outcome` of the trainer, `slurm/down` of a node."""
    attempt: int
    fields: dict[str, Any]


class Watch(threading.Thread):
    """Signs of a run in order of appearance."""

    def __init__(self, run: RunDir, find_down: Callable[[], Collection[str]] = tuple) -> None:
        """Args:
        find_down: returns the nodes that Slurm calls down; may be slow.
        """
        super().__init__(name="watch", daemon=True)
        self.run_dir, self.find_down, self.signs = run, find_down, list[Sign]()
        self._num_events, self._size, self._told, self._is_over = 0, -1, set[str](), threading.Event()

    def run(self) -> None:
        threading.Thread(target=self._poll_slurm, name="ask", daemon=True).start()
        while not self._is_over.wait(_LOOK_S):
            self.look()

    def close(self) -> None:
        self._is_over.set()
        self.join()

    def _poll_slurm(self) -> None:
        down = set[str]()
        while not self._is_over.wait(_ASK_S):
            now = set(self.find_down())
            self.signs += [Sign(time.time(), "slurm/down", 0, {"host": host}) for host in sorted(now - down)]
            down = now

    def look(self) -> None:
        for what, attempt, fields in [*self._new_events(), *self._new_records()]:
            self.signs.append(Sign(time.time(), what, attempt, fields))

    def _new_events(self) -> Iterator[tuple[str, int, dict[str, Any]]]:
        size = self.run_dir.events.stat().st_size if self.run_dir.events.is_file() else 0
        if size != self._size:
            self._size = size
            rows = read_rows(self.run_dir.events)
            for row in rows[self._num_events :]:
                yield row["kind"], row.get("attempt", 0), row
            self._num_events = len(rows)

    def _new_records(self) -> Iterator[tuple[str, int, dict[str, Any]]]:
        number = max(self.run_dir.attempt_numbers(), default=0)
        attempt = self.run_dir.attempt(number)
        if number and attempt.outcome.is_file() and self._is_new(str(attempt.outcome)):
            yield "outcome", number, read_json(attempt.outcome)
        for path in attempt.path.glob("node-*.json") if number else ():
            record = read_json(path)
            if record["state"] in _ENDING and self._is_new(str(path)):
                yield "record/ending", number, record

    def _is_new(self, name: str) -> bool:
        is_new = name not in self._told
        self._told.add(name)
        return is_new


def append_signs(log: Path, signs: Iterable[Sign]) -> None:
    """Append one JSON line per sign."""
    with log.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(sign)) + "\n" for sign in signs)
