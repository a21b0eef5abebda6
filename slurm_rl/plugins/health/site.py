"""Evidence that the runs of a site share: `<cluster.site_dir>/nodes/<name>.json`, replaced atomically.

If two runs write a file at once, one version is lost; each run publishes all of its rows again at its next start.
Failures are logged and never end a run.
"""

import json
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from slurm_rl.plugins.health.evidence import Row, is_row
from slurm_rl.run_dir.io_errors import open_regular
from slurm_rl.run_dir.run_dir import write_json

_log = logging.getLogger(__name__)
_MAX_ROWS = 50
_MAX_FILES = 10_000
_MAX_BYTES = 1_000_000
_KEEP_S = 8 * 86400.0
_MAX_SKEW_S = 86400.0
"""Rows from later than this are rejected, since they would outlive all others."""


def read_site(site_dir: str | None) -> list[dict[str, Any]]:
    """Return the rows of all nodes. Malformed or hostile files of other users are skipped with a warning."""
    if site_dir is None:
        return []
    folder = Path(site_dir) / "nodes"
    try:
        paths = sorted(folder.glob("*.json"))
    except OSError:
        return []
    if len(paths) > _MAX_FILES:
        _log.warning("%s has %d files, only the first %d are read", folder, len(paths), _MAX_FILES)
    return [row for path in paths[:_MAX_FILES] for row in _read(path)]


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        with open_regular(path, follow=False) as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ValueError(f"more than {_MAX_BYTES:,} bytes")
        tree = json.loads(data)
        if not isinstance(tree, dict) or not isinstance(tree.get("rows"), list):
            raise ValueError("not an object with a list of rows")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        _log.warning("skipped %a, which is not a file with rows of a node (%s)", str(path), ascii(str(error))[:200])
        return []
    rows = tree["rows"][-_MAX_ROWS:]
    valid = [row for row in rows if is_row(row) and row["time"] < time.time() + _MAX_SKEW_S]
    if len(valid) < len(rows):
        _log.warning("skipped %d rows of %a: invalid types, or from the future", len(rows) - len(valid), str(path))
    return valid


def publish(site_dir: str | None, rows: Iterable[Row], now: float | None = None, *, strict: bool = False) -> None:
    """Merge rows into the files of their nodes.

    Args:
        strict: raise OSError if a file cannot be written, instead of logging it.
    """
    if site_dir is None:
        return
    by_node: dict[str, list[Row]] = {}
    for row in filter(is_row, rows):
        by_node.setdefault(row["node"], []).append(row)
    for node, new in by_node.items():
        path = Path(site_dir) / "nodes" / f"{node}.json"
        old = _read(path)
        merged = merge(old, new, time.time() if now is None else now)
        if merged == old:
            continue
        try:
            write_json(path, {"node": node, "rows": merged}, mode=0o644)
        except OSError as error:
            if strict:
                raise
            _log.warning("cannot write %s (%s): other runs do not learn of %s", path, error.strerror, node)


def merge(old: Sequence[Row], new: Sequence[Row], now: float) -> list[Row]:
    """Return the newest rows by time, without duplicates and expired rows.

    >>> rows = [{"time": time, "node": "n1", "cleared": "ada"} for time in (3.0, 5.0, 1e9)]
    >>> merge(rows[1:], rows, now=6.0) == rows[:2]
    True
    """
    rows: list[Row] = []
    for row in [*old, *new]:
        if is_row(row) and now - _KEEP_S < row["time"] < now + _MAX_SKEW_S and row not in rows:
            rows.append(row)
    return sorted(rows, key=lambda row: float(row["time"]))[-_MAX_ROWS:]
