"""Find the cause of an attempt's end from its events. Pure."""

import re
from collections.abc import Sequence

from slurm_rl.plugins.goodput.allocations import is_settled, number
from slurm_rl.plugins.goodput.types import Cause
from slurm_rl.run_dir.jsonl import Row

_LONGEST = 60
_EARLY_S = 90.0
_STOPPED = {"limit": Cause("limit"), "scheduler": Cause("preemption"), "user": Cause("user")}


def find_cause(events: Sequence[Row], ended: Row | None, *, is_requeued: bool) -> Cause | None:
    """Return the cause of an attempt's end; None if it finished or is running.

    Args:
        events: events of this attempt, including `attempt/ended`.
        is_requeued: the next attempt belongs to another allocation of the same job.

    >>> find_cause([{"kind": "nodes/lost", "hosts": ["n17"]}], {"outcome": "lost", "seconds": 9.0}, is_requeued=False)
    Cause(kind='node', name='n17', reason='')
    """
    if ended is None or ended.get("outcome") == "finished":
        return None
    if node := _find_node([ended, *events]):
        return node
    if is_requeued and ended.get("stopped_by", "user") == "user":
        # Slurm and `scancel` send the same SIGTERM; only the next event distinguishes them.
        return Cause("requeue", reason="no warning" if is_settled(ended) else "")
    stopped = _STOPPED.get(str(ended.get("stopped_by", "")))
    if stopped is not None:
        return _STOPPED["limit"] if _is_at_limit(events, ended) else stopped
    if is_settled(ended):
        return Cause("program", reason="its controller was killed")
    return Cause("program", reason=_shorten(str(ended.get("cause", ""))))


def _is_at_limit(events: Sequence[Row], ended: Row) -> bool:
    """Return whether the time limit ended the attempt: the controller or Slurm stopped it near the announced end.

    Slurm signals up to 60 s early, every 30 s. A preemption at that time counts as the limit.
    """
    if any(event.get("kind") == "job/stop_raised" for event in events):
        return True
    begun = next((event for event in events if event.get("kind") == "attempt/started"), {})
    return "ends_at" in begun and number(ended, "time") >= number(begun, "ends_at") - number(begun, "lead_s") - _EARLY_S


def _find_node(events: Sequence[Row]) -> Cause | None:
    """Return the node at fault: lost nodes first, then hard evidence, then nodes whose agent died."""
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
