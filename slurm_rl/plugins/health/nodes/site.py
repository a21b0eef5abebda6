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

from slurm_rl.disk import open_regular, say
from slurm_rl.plugins.health.nodes.evidence import is_row
from slurm_rl.run_dir import write_json

_MOST_ROWS = 50
_MOST_FILES = 10_000
_MOST_BYTES = 1_000_000
"""Of one file: 50 rows have a tenth of it."""
_KEPT_S = 8 * 86400.0
_AHEAD_S = 86400.0
"""The clocks of nodes differ by less; a row from later on would outlive all others."""
# Of a name that could be a path the file could be anywhere.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

Row = Mapping[str, Any]


def read_site(site_dir: str | None) -> list[dict[str, Any]]:
    """Return all rows of all nodes; none without a folder. Others may write there: a bad file is skipped and named."""
    if site_dir is None:
        return []
    try:
        paths = sorted((Path(site_dir) / "nodes").glob("*.json"))
    except OSError:
        return []
    if len(paths) > _MOST_FILES:
        say(f"{Path(site_dir) / 'nodes'} has {len(paths):,} files: only the first {_MOST_FILES:,} are read")
    return [row for path in paths[:_MOST_FILES] for row in _read(path)]


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; none of one that is missing."""
    try:
        rows = _parse(path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        say(f"{str(path)!a} is skipped, since it is no file of rows of a node ({ascii(str(error))[:200]})")
        return []
    good = [row for row in rows if is_row(row) and row["time"] < time.time() + _AHEAD_S]
    if len(good) < len(rows):
        say(f"{len(rows) - len(good)} rows of {str(path)!a} are skipped: of other types, or from the future")
    return good


def _parse(path: Path) -> list[Any]:
    with open_regular(path, follow=False) as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES:,} bytes")
    tree = json.loads(data)
    if not isinstance(tree, dict) or not isinstance(tree.get("rows"), list):
        raise ValueError("no object with a list of rows")
    return tree["rows"][-_MOST_ROWS:]


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
    """Return rows by time, each once, the newest of them.

    >>> rows = [{"time": time, "node": "n1", "passed": "fabric"} for time in (3.0, 5.0, 1e9)]
    >>> merge(rows[1:], rows, now=6.0) == rows[:2]
    True
    """
    rows: list[Row] = []
    for row in [*there, *new]:
        if is_row(row) and now - _KEPT_S < row["time"] < now + _AHEAD_S and row not in rows:
            rows.append(row)
    return sorted(rows, key=lambda row: float(row["time"]))[-_MOST_ROWS:]
