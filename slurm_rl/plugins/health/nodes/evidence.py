"""Evidence against a node, and which nodes it keeps out. Standard library alone.

    >>> found = Evidence.found("n17", "ecc", "a row could not be remapped", "hard", now=1000.0, attempt=2)
    >>> bad = find_bad([found.to_row()], now=2000.0, boot_times={"n17": 500.0})
    >>> list(bad), find_bad([found.to_row()], now=2000.0, boot_times={"n17": 1500.0})
    (['n17'], {})

`hard` is what only a repair or a reboot ends: it holds until the node was booted again, or for a week. `soft` (slow,
straggling, suspected of a hang) is about one attempt: it holds for a day, and from the second attempt that says so.
A row with the key `cleared` voids all that was said of its node before.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from slurm_rl import jsonl
from slurm_rl.disk import describe_disk, say
from slurm_rl.errors import LeaseError
from slurm_rl.run_dir import RunDir, append_event, append_row

Strength = Literal["hard", "soft"]
HOLDS_S: dict[Strength, float] = {"hard": 7 * 86400.0, "soft": 86400.0}
_MIN_SOFT_ATTEMPTS = 2
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_LONGEST_TEXT = 2000
_END = 1e19
"""No time is so late; also bounds ints that no float holds."""


def is_row(row: Any) -> bool:
    """Return whether this has the types of a row about a node; files of a site may be written by others.

    >>> is_row({"time": 1.0, "node": "n1", "cleared": "ada"}), is_row({"time": 1.0, "node": []})
    (True, False)
    """
    if not isinstance(row, Mapping):
        return False
    texts = [row[key] for key in ("check", "value", "strength", "run", "cleared", "passed") if key in row]
    return (
        _is_time(row.get("time"))
        and ("until" not in row or _is_time(row["until"]))
        and isinstance(row.get("node"), str)
        and _NODE.fullmatch(row["node"]) is not None
        and all(isinstance(text, str) and len(text) <= _LONGEST_TEXT for text in texts)
        and (row.get("attempt") is None or type(row["attempt"]) is int)
    )


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _END and math.isfinite(value)


@dataclass(frozen=True)
class Evidence:
    """Something that was seen of a node in an attempt of a run."""

    time: float
    """When, in seconds since 1970."""
    node: str
    """Slurm's name of it (SLURMD_NODENAME), not its host name."""
    check: str
    """Row of the gate's table, or who else saw it: straggler, hang, engine, operator."""
    value: str
    """What was seen, for people."""
    strength: Strength
    attempt: int | None
    """Of the run; None when an operator said it."""
    until: float
    """When it ends at the latest, in seconds since 1970."""
    run: str = ""
    """Name of the run directory; in the site's files."""

    @staticmethod
    def found(
        node: str,
        check: str,
        value: str,
        strength: Strength,
        *,
        attempt: int | None,
        now: float | None = None,
        holds_s: float | None = None,
    ) -> Evidence:
        """Evidence of now, which holds as long as `holds_s`, or else its strength, says."""
        now = round(time.time() if now is None else now, 3)
        return Evidence(now, node, check, value, strength, attempt, now + (holds_s or HOLDS_S[strength]))

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> Evidence | None:
        """None where the row is none: a clearing, or of another form."""
        if not is_row(row) or row.get("strength") not in HOLDS_S:
            return None
        values = {field.name: row[field.name] for field in fields(Evidence) if field.name in row}
        return Evidence(**values) if {"check", "value", "attempt", "until"} <= values.keys() else None

    def to_row(self) -> dict[str, Any]:
        return asdict(self)


def note_evidence(run: RunDir, evidence: Evidence) -> None:
    """Write it down in the run directory, and as the event node/unfit; who excludes nodes reads that file. A full disk
    costs the row alone."""
    row = {**evidence.to_row(), "run": run.path.name}
    try:
        append_row(run, run.nodes, row)
    except (LeaseError, OSError) as error:
        say(f"evidence could not be written ({error}; {describe_disk(run.path)}): {json.dumps(row)}")
    fields = {"check": evidence.check, "value": evidence.value, "strength": evidence.strength}
    append_event(run, "node/unfit", node=evidence.node, attempt=evidence.attempt, **fields)


def read_evidence(run: RunDir) -> list[dict[str, Any]]:
    """All rows of the run, clearings too."""
    return jsonl.read_rows(run.nodes)


def note_passed(run: RunDir, nodes: Iterable[str], test: str) -> None:
    """These nodes passed a test that need not be made each time. A full disk costs the rows alone."""
    rows = [{"time": round(time.time(), 3), "node": node, "passed": test, "run": run.path.name} for node in nodes]
    try:
        for row in rows:
            append_row(run, run.nodes, row)
    except (LeaseError, OSError) as error:
        say(f"who passed the test {test} could not be written ({error}; {describe_disk(run.path)})")


def find_passed(rows: Iterable[Mapping[str, Any]], test: str, since: float) -> set[str]:
    """Nodes that passed a test since then, and of which nothing bad was seen after it.

    >>> passed = [{"time": 50.0, "node": node, "passed": "fabric"} for node in ("n1", "n2")]
    >>> slow = Evidence.found("n2", "straggler", "slow", "soft", attempt=1, now=60.0).to_row()
    >>> find_passed([*passed, slow], "fabric", since=40.0), find_passed(passed, "fabric", since=55.0)
    ({'n1'}, set())
    """
    newest: dict[str, tuple[float, bool]] = {}
    for row in rows:
        is_pass = row.get("passed") == test
        if is_row(row) and (is_pass or "check" in row):
            node = row["node"]
            newest[node] = max(newest.get(node, (0.0, False)), (float(row["time"]), is_pass))
    return {node for node, (said_at, is_pass) in newest.items() if is_pass and said_at >= since}


def make_clearing(node: str, now: float, by: str) -> dict[str, Any]:
    """The row that voids what was said of a node before `now`."""
    return {"time": round(now, 3), "node": node, "cleared": by}


def find_bad(
    rows: Iterable[Mapping[str, Any]], now: float, boot_times: Mapping[str, float] | None = None
) -> dict[str, Evidence]:
    """Node -> the newest evidence that keeps it out.

    Args:
        rows: of the run and of the site, in any order; the same one may come twice.
        boot_times: when each node was booted, in seconds since 1970, where Slurm says so.
    """
    rows = list(rows)
    cleared: dict[str, float] = {}
    for row in rows:
        if "cleared" in row and is_row(row):
            cleared[row["node"]] = max(row["time"], cleared.get(row["node"], 0.0))
    seen = sorted(filter(None, map(Evidence.from_row, rows)), key=lambda one: one.time)
    holds = [
        one
        for one in seen
        if now < one.until
        and one.time > cleared.get(one.node, 0.0)
        # A booted node has new drivers and remapped rows; what made it slow may be its cable.
        and not (one.strength == "hard" and one.time < (boot_times or {}).get(one.node, 0.0))
    ]
    attempts: dict[str, set[tuple[str, int | None]]] = {}
    for one in holds:
        if one.strength == "soft":
            attempts.setdefault(one.node, set()).add((one.run, one.attempt))
    return {one.node: one for one in holds if one.strength == "hard" or len(attempts[one.node]) >= _MIN_SOFT_ATTEMPTS}
