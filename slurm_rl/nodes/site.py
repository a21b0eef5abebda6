"""What runs of a site tell each other of nodes: `<cluster.site_dir>/nodes/<name>.json`, renamed into place.

Two runs may write a file at once and one of them win: each tells all that its own nodes.jsonl has again at its next
start, so nothing stays lost. A folder that cannot be written costs a word, never a run.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_rl.disk import say
from slurm_rl.run_dir import write_json

_MOST_ROWS = 50
_KEPT_S = 8 * 86400.0
# Of a name that could be a path the file could be anywhere.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

Row = Mapping[str, Any]


def read_site(site_dir: str | None) -> list[dict[str, Any]]:
    """All rows of all nodes; none without a folder. A file that is damaged is passed over."""
    if site_dir is None:
        return []
    try:
        paths = sorted((Path(site_dir) / "nodes").glob("*.json"))
    except OSError:
        return []
    return [row for path in paths for row in _read(path)]


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def publish(site_dir: str | None, rows: Iterable[Row], now: float | None = None, *, strict: bool = False) -> None:
    """Add rows to the files of their nodes; those that are there already, and those long over, are left out.

    Args:
        strict: raise the OSError of a folder that cannot be written, of which a run is only told.
    """
    if site_dir is None:
        return
    of_node: dict[str, list[Row]] = {}
    for row in rows:
        if _NAME.fullmatch(str(row.get("node", ""))):
            of_node.setdefault(str(row["node"]), []).append(row)
    for node, new in of_node.items():
        path = Path(site_dir) / "nodes" / f"{node}.json"
        there = _read(path)
        merged = merge(there, new, time.time() if now is None else now)
        if merged == there:
            continue
        try:
            write_json(path, {"node": node, "rows": merged}, mode=0o644)
        except OSError as error:
            if strict:
                raise
            say(f"{path} could not be written ({error.strerror}): other runs do not learn of {node}")


def merge(there: Sequence[Row], new: Sequence[Row], now: float) -> list[Row]:
    """Rows by time, each once, the newest of them.

    >>> merge([{"time": 5.0}], [{"time": 3.0}, {"time": 5.0}], now=6.0)
    [{'time': 3.0}, {'time': 5.0}]
    """
    rows: list[Row] = []
    for row in [*there, *new]:
        said_at = row.get("time")
        if isinstance(said_at, int | float) and said_at > now - _KEPT_S and row not in rows:
            rows.append(row)
    return sorted(rows, key=lambda row: float(row["time"]))[-_MOST_ROWS:]
