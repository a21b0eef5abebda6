"""The findings of all nodes as one table. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from slurm_rl.plugins.health.doctor.finding import Finding

_MARKS = {"ok": "ok", "wrong": "WRONG", "unseen": "-"}
_SHOWN_HOSTS = 4
_WIDEST = 56
_FOLDED = (2, 3, 4)
"""Columns of hosts, of what was seen, and of what should be."""
_NARROWEST = 9
_INDENT = " " * (max(map(len, _MARKS.values())) + 2)

Findings = Mapping[str, Sequence[Finding]]
"""Host -> its findings."""


def is_well(found: Findings) -> bool:
    return all(finding.state != "wrong" for findings in found.values() for finding in findings)


def render(found: Findings, width: int | None = None) -> str:
    """A line for each thing that was looked at, by all hosts that say the same of it; what to do stands below it.

    Args:
        width: of the terminal; longer cells are folded.
    """
    rows = [row for what in _order(found) for row in _rows(what, found)]
    cells = [["", "", "", "SEEN", "SHOULD BE"]]
    for finding, hosts in rows:
        where = name_hosts(hosts, len(found)) if len(found) > 1 else ""
        cells.append([_MARKS[finding.state], finding.what, where, finding.seen, finding.should])
    widths = _widths(cells, width)
    longest = _WIDEST * 2 if width is None else min(width, _WIDEST * 2)
    lines = []
    for row, action in zip(cells, ["", *(finding.action for finding, _ in rows)], strict=True):
        folded = [textwrap.wrap(cell, width) if width else [] for cell, width in zip(row, widths, strict=True)]
        for parts in zip_longest(*folded, fillvalue=""):
            padded = [part.ljust(width) for part, width in zip(parts, widths, strict=True) if width]
            lines.append("  ".join(padded).rstrip())
        if action:
            lines += textwrap.wrap(f"do: {action}", longest, initial_indent=_INDENT, subsequent_indent=_INDENT + "    ")
    return "\n".join(lines)


def _widths(cells: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """As wide as the cells; the widest columns of words give way to the terminal."""
    widths = [min(_WIDEST, max(len(row[column]) for row in cells)) for column in range(len(cells[0]))]
    between = 2 * (sum(map(bool, widths)) - 1)
    while width is not None and sum(widths) + between > width:
        widest = max(_FOLDED, key=widths.__getitem__)
        if widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    return widths


def _order(found: Findings) -> list[str]:
    """Names in the order of the probes, whichever host has most of them."""
    longest = max(found.values(), key=len, default=())
    return list(dict.fromkeys(one.what for findings in [longest, *found.values()] for one in findings))


def _rows(what: str, found: Findings) -> list[tuple[Finding, list[str]]]:
    """What is wrong by what is said of it; what is well with the lowest number of all."""
    groups: dict[tuple[str, str], list[tuple[str, Finding]]] = {}
    for host, findings in found.items():
        for one in findings:
            if one.what == what:
                is_number = one.state == "ok" and one.value is not None
                groups.setdefault((one.state, "" if is_number else one.seen), []).append((host, one))
    rows = []
    for said in groups.values():
        shown = min((one for _, one in said), key=lambda one: one.value if one.value is not None else 0.0)
        rows.append((shown, [host for host, _ in said]))
    return sorted(rows, key=lambda row: list(_MARKS).index(row[0].state))


def name_hosts(hosts: Sequence[str], total: int) -> str:
    """Hosts in a few words.

    >>> name_hosts(["n1", "n2"], 2), name_hosts(["n1"], 2), name_hosts([f"n{i}" for i in range(6)], 9)
    ('all 2', 'n1', 'n0 n1 n2 n3 and 2 more')
    """
    if len(hosts) == total:
        return f"all {total}"
    more = f" and {len(hosts) - _SHOWN_HOSTS} more" if len(hosts) > _SHOWN_HOSTS else ""
    return " ".join(hosts[:_SHOWN_HOSTS]) + more
