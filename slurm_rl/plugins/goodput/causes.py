"""Events of an attempt -> what its end is charged to. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_rl.plugins.goodput.holds import is_settled, number
from slurm_rl.plugins.goodput.nouns import Cause
from slurm_rl.run_dir.jsonl import Row

_LONGEST = 60
_EARLY_S = 90.0
_STOPPED = {"limit": Cause("limit"), "scheduler": Cause("preemption"), "user": Cause("user")}


def find_cause(events: Sequence[Row], ended: Row | None, *, is_requeued: bool) -> Cause | None:
    """The cause of an attempt's end; None when it finished or goes on.

    Args:
        events: of this attempt, its `attempt/ended` included.
        is_requeued: the attempt after it belongs to another start of the same job.

    >>> find_cause([{"kind": "nodes/lost", "hosts": ["n17"]}], {"outcome": "lost", "seconds": 9.0}, is_requeued=False)
    Cause(who='node', name='n17', reason='')
    """
    if ended is None or ended.get("outcome") == "finished":
        return None
    if node := _find_node([ended, *events]):
        return node
    if is_requeued and ended.get("stopped_by", "user") == "user":
        # Slurm's SIGTERM is that of `scancel`; what follows tells them apart.
        return Cause("requeue", reason="no warning" if is_settled(ended) else "")
    stopped = _STOPPED.get(str(ended.get("stopped_by", "")))
    if stopped is not None and _is_at_limit(events, ended):
        return _STOPPED["limit"]
    if stopped is not None:
        return stopped
    if is_settled(ended):
        return Cause("program", reason="its controller was killed")
    return Cause("program", reason=_shorten(str(ended.get("cause", ""))))


def _is_at_limit(events: Sequence[Row], ended: Row) -> bool:
    """The controller raised the stop, or Slurm did so near the end that it had announced: up to 60 s early, on a tick
    of 30 s. A preemption at that time is taken for the limit, which would have come anyway."""
    if any(event.get("kind") == "job/stop_raised" for event in events):
        return True
    begun = next((event for event in events if event.get("kind") == "attempt/started"), {})
    return "ends_at" in begun and number(ended, "time") >= number(begun, "ends_at") - number(begun, "lead_s") - _EARLY_S


def _find_node(events: Sequence[Row]) -> Cause | None:
    """Hard evidence first, then a node that was lost, then one whose agent died."""
    unfit = [e for e in events if e.get("kind") == "node/unfit" and e.get("strength", "hard") == "hard" and "node" in e]
    lost = [event for event in events if event.get("kind") in ("nodes/lost", "attempt/ended") and event.get("hosts")]
    if lost:
        name = str(lost[0]["hosts"][0])
        named = [event for event in unfit if event["node"] == name]
        return Cause("node", name, _evidence(named[0]) if named else "")
    if unfit:
        return Cause("node", str(unfit[0]["node"]), _evidence(unfit[0]))
    for event in events:
        found = re.match(r"([\w.-]+): (.*)", str(event.get("cause", ""))) if event.get("kind") == "node/died" else None
        if found:
            return Cause("node", found[1], _shorten(found[2]))
    return None


def _evidence(event: Row) -> str:
    value = _shorten(str(event.get("value", "")))
    check = str(event.get("check", ""))
    return value if value.lower().startswith(check.lower()) else f"{check} {value}".strip()


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
