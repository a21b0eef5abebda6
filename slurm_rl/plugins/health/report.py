"""The report of `doctor`: verdicts of all nodes as a table."""

import io
import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from slurm_rl.plugins.health.judge import Verdicts
from slurm_rl.plugins.health.table import TABLE
from slurm_rl.plugins.health.verdict import State

_MARKS: dict[State, str] = {"bad": "WRONG", "warn": "warn", "ok": "ok", "unknown": "-"}
_MAX_HOSTS = 4


def is_healthy(verdicts: Verdicts) -> bool:
    return all(one.state != "bad" for by_check in verdicts.values() for one in by_check.values())


def action_of(check: str) -> str:
    """Return the advice for a bad verdict of a check."""
    return next((one.action for one in TABLE if one.name == check), "see cluster.run_root and container.image")


def render_json(verdicts: Verdicts) -> str:
    nodes = {
        host: {
            name: {"state": one.state, "seen": one.seen, **({"action": action_of(name)} if one.state == "bad" else {})}
            for name, one in by_check.items()
        }
        for host, by_check in verdicts.items()
    }
    return json.dumps({"healthy": is_healthy(verdicts), "nodes": nodes}, indent=2)


def render(verdicts: Verdicts, width: int | None = None) -> str:
    """Return one row per check and distinct result, with the hosts that share it.

    Args:
        width: columns of the terminal.
    """
    table = Table(box=None, pad_edge=False, show_edge=False)
    for title in ("", "CHECK", "NODES", "SEEN"):
        table.add_column(title, overflow="fold", no_wrap=title in ("", "CHECK"))
    for name in dict.fromkeys(name for by_check in verdicts.values() for name in by_check):
        groups: dict[tuple[State, str], list[str]] = {}
        for host, by_check in verdicts.items():
            if name in by_check:
                groups.setdefault((by_check[name].state, by_check[name].seen), []).append(host)
        for (state, seen), hosts in sorted(groups.items(), key=lambda group: list(_MARKS).index(group[0][0])):
            table.add_row(_MARKS[state], name, name_hosts(hosts, len(verdicts)), seen)
            if state == "bad":
                table.add_row("", "", "", f"do: {action_of(name)}")
    console = Console(file=io.StringIO(), width=width or 160, markup=False, highlight=False, emoji=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


def name_hosts(hosts: Sequence[str], total: int) -> str:
    """Return hosts in short form.

    >>> name_hosts(["n1", "n2"], 2), name_hosts(["n1"], 2), name_hosts([f"n{i}" for i in range(6)], 9)
    ('all 2', 'n1', 'n0 n1 n2 n3 and 2 more')
    """
    if 1 < len(hosts) == total:
        return f"all {total}"
    more = f" and {len(hosts) - _MAX_HOSTS} more" if len(hosts) > _MAX_HOSTS else ""
    return " ".join(hosts[:_MAX_HOSTS]) + more
