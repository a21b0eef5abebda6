"""Evidence against nodes, and which nodes it excludes.

    >>> row = Evidence.new("n17", "ecc", "a memory row could not be remapped", "hard", now=1000.0, attempt=2).to_row()
    >>> list(find_bad([row], now=2000.0, boot_times={"n17": 500.0})), find_bad([row], 2000.0, {"n17": 1500.0})
    (['n17'], {})

Hard evidence holds until the node reboots, or for a week. Soft evidence (a straggler, a suspect of a hang) holds for a
day, from the second attempt that reports it. A row with the key `cleared` revokes all earlier rows of its node.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from slurm_rl.errors import LeaseError
from slurm_rl.run_dir import jsonl
from slurm_rl.run_dir.io_errors import describe_disk
from slurm_rl.run_dir.run_dir import RunDir, append_event, append_row

_log = logging.getLogger(__name__)
Strength = Literal["hard", "soft"]
Row = Mapping[str, Any]
HOLDS_S: dict[Strength, float] = {"hard": 7 * 86400.0, "soft": 86400.0}
_MIN_SOFT_ATTEMPTS = 2
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_MAX_TEXT = 2000
_MAX_TIME = 1e19
"""Also excludes integers that no float holds."""


def is_row(row: Any) -> bool:
    """Return whether the types of a row are valid; other users may write the site's files.

    >>> is_row({"time": 1.0, "node": "n1", "cleared": "ada"}), is_row({"time": 1.0, "node": []})
    (True, False)
    """
    if not isinstance(row, Mapping):
        return False
    texts = [row[key] for key in ("check", "value", "strength", "run", "cleared") if key in row]
    return (
        _is_time(row.get("time"))
        and ("until" not in row or _is_time(row["until"]))
        and isinstance(row.get("node"), str)
        and _NODE.fullmatch(row["node"]) is not None
        and all(isinstance(text, str) and len(text) <= _MAX_TEXT for text in texts)
        and (row.get("attempt") is None or type(row["attempt"]) is int)
    )


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < _MAX_TIME and math.isfinite(value)


@dataclass(frozen=True)
class Evidence:
    """One finding against a node."""

    time: float
    """Unix time."""
    node: str
    """Slurm's name of the node (SLURMD_NODENAME), which may differ from its host name."""
    check: str
    """Check of table.py, or straggler, hang, engine, answer, operator."""
    value: str
    strength: Strength
    attempt: int | None
    """Attempt of the run; None if an operator added it."""
    until: float
    """Unix time at which it expires."""
    run: str = ""
    """Name of the run directory."""

    @staticmethod
    def new(
        node: str,
        check: str,
        value: str,
        strength: Strength,
        *,
        attempt: int | None,
        now: float | None = None,
        holds_s: float | None = None,
    ) -> Evidence:
        """Return evidence that begins now and holds for `holds_s`, by default for the time of its strength."""
        now = round(time.time() if now is None else now, 3)
        return Evidence(now, node, check, value, strength, attempt, now + (holds_s or HOLDS_S[strength]))

    @staticmethod
    def from_row(row: Row) -> Evidence | None:
        """Return None for a row that is invalid or of another kind. Rows of events have no `until`."""
        if not is_row(row) or row.get("strength") not in HOLDS_S:
            return None
        values = {field.name: row[field.name] for field in fields(Evidence) if field.name in row}
        values.setdefault("until", row["time"] + HOLDS_S[row["strength"]])
        return Evidence(**values) if {"check", "value", "attempt"} <= values.keys() else None

    def to_row(self) -> dict[str, Any]:
        return asdict(self)


def note_evidence(run: RunDir, evidence: Evidence) -> None:
    """Append to nodes.jsonl and log the event node/unfit. A full disk loses the row only."""
    row = {**evidence.to_row(), "run": run.path.name}
    try:
        append_row(run, run.nodes, row)
    except (LeaseError, OSError) as error:
        _log.warning("cannot write %s (%s; %s): %s", run.nodes, error, describe_disk(run.path), row)
    event = {"check": evidence.check, "value": evidence.value, "strength": evidence.strength}
    append_event(run, "node/unfit", node=evidence.node, attempt=evidence.attempt, **event)


def read_evidence(run: RunDir) -> list[dict[str, Any]]:
    """Return all rows of the run, and the events node/unfit by which other parts of the run report a node."""
    rows = jsonl.read_rows(run.nodes)
    written = {(row.get("node"), row.get("check"), row.get("attempt")) for row in rows}
    events = [{**row, "run": run.path.name} for row in jsonl.read_rows(run.events) if row.get("kind") == "node/unfit"]
    return rows + [row for row in events if (row.get("node"), row.get("check"), row.get("attempt")) not in written]


def clear_node(node: str, now: float, by: str) -> dict[str, Any]:
    """Return the row that revokes all earlier rows of the node."""
    return {"time": round(now, 3), "node": node, "cleared": by}


def find_bad(rows: Iterable[Row], now: float, boot_times: Mapping[str, float] | None = None) -> dict[str, Evidence]:
    """Return each excluded node with the newest evidence against it.

    Args:
        rows: rows of the run and of the site, in any order and possibly repeated.
        boot_times: Unix time of each node's boot, as far as Slurm knows it.
    """
    rows = list(rows)
    cleared: dict[str, float] = {}
    for row in rows:
        if "cleared" in row and is_row(row):
            cleared[row["node"]] = max(row["time"], cleared.get(row["node"], 0.0))
    # A reboot reloads drivers and remaps memory rows; it does not repair a slow network or disk.
    valid = [
        one
        for one in sorted(filter(None, map(Evidence.from_row, rows)), key=lambda one: one.time)
        if now < one.until
        and one.time > cleared.get(one.node, 0.0)
        and not (one.strength == "hard" and one.time < (boot_times or {}).get(one.node, 0.0))
    ]
    attempts: dict[str, set[tuple[str, int | None]]] = {}
    for one in valid:
        if one.strength == "soft":
            attempts.setdefault(one.node, set()).add((one.run, one.attempt))
    return {one.node: one for one in valid if one.strength == "hard" or len(attempts[one.node]) >= _MIN_SOFT_ATTEMPTS}
