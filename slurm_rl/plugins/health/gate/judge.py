"""From what all nodes said to who is left out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_rl.plugins.health.gate.script import Said
from slurm_rl.plugins.health.gate.table import Check
from slurm_rl.plugins.health.gate.verdict import Verdict, Wanted

Verdicts = dict[str, dict[str, Verdict]]
"""Node -> check -> verdict."""
_LEAST_COMMON = 2


@dataclass(frozen=True)
class Judged:
    """What follows for the attempt."""

    unfit: dict[str, dict[str, str]] = field(default_factory=dict)
    """Node -> check -> what was seen."""
    common: dict[str, str] = field(default_factory=dict)
    """Check -> what was seen, of checks that found so many nodes bad that it is not the nodes' fault."""
    refused: dict[str, str] = field(default_factory=dict)
    """Check -> node and what was seen, of checks whose policy is refuse."""
    warned: dict[str, str] = field(default_factory=dict)
    """`check: what was seen` -> the nodes."""
    unknown: dict[str, str] = field(default_factory=dict)
    """The same of what could not be told."""


def judge_nodes(
    said: Mapping[str, Mapping[str, Said]], checks: Sequence[Check], wanted: Wanted, hosts: Sequence[str]
) -> Verdicts:
    """Verdicts on all nodes that answered.

    Args:
        said: node -> source -> what it said.
        hosts: that were asked; who is not in `said` gets no verdicts.
    """
    found: Verdicts = {host: {} for host in hosts if host in said}
    for check in checks:
        if check.parse is None:
            continue
        told = {host: _ask(check, said[host].get(check.source), wanted) for host in found}
        if check.compare is not None:
            told = check.compare(told)
        for host, verdict in told.items():
            found[host][check.name] = verdict
    for verdicts in found.values():
        # The driver itself says whether the GPU is whole again.
        if (
            "xid" in verdicts
            and verdicts["xid"].state == "bad"
            and verdicts.get("recovery", verdicts["xid"]).state == "ok"
        ):
            verdicts["xid"] = Verdict("warn", f"{verdicts['xid'].seen}; the driver asks for no repair")
    return found


def _ask(check: Check, said: Said | None, wanted: Wanted) -> Verdict:
    assert check.parse is not None
    if said is None or said.rc is None:
        hangs = said is not None or check.source == "files"
        return Verdict("bad" if hangs else "unknown", f"{check.source} did not answer in time")
    verdict = check.parse(said.text, said.rc, wanted)
    if check.name == "files" and verdict.state == "unknown":
        # Without its word nothing can be started there.
        return Verdict("bad", verdict.seen)
    return verdict


def apply_policy(verdicts: Verdicts, policy: Mapping[str, str]) -> Judged:
    """Who is left out.

    >>> bad, ok = Verdict("bad", "1 GPU"), Verdict("ok")
    >>> apply_policy({"n1": {"gpus": ok}, "n2": {"gpus": bad}}, {}).unfit
    {'n2': {'gpus': '1 GPU'}}
    >>> found = apply_policy({"n1": {"gpus": bad}, "n2": {"gpus": bad}, "n3": {"gpus": ok}}, {})
    >>> found.unfit, found.common
    ({}, {'gpus': '2 of 3 nodes, n1: 1 GPU'})
    """
    found = Judged()
    names = dict.fromkeys(name for checks in verdicts.values() for name in checks)
    for name in names:
        told = {host: checks[name] for host, checks in verdicts.items() if name in checks}
        bad = {host: verdict.seen for host, verdict in told.items() if verdict.state == "bad"}
        rule = policy.get(name, "exclude")
        first = next(iter(bad), "")
        if rule == "warn":
            _group(found.warned, name, bad)
        elif bad and rule == "refuse":
            found.refused[name] = f"{first}: {bad[first]}"
        elif len(bad) >= _LEAST_COMMON and 2 * len(bad) >= len(told):
            found.common[name] = f"{len(bad)} of {len(told)} nodes, {first}: {bad[first]}"
        else:
            for host, seen in bad.items():
                found.unfit.setdefault(host, {})[name] = seen
        _group(found.warned, name, {host: one.seen for host, one in told.items() if one.state == "warn"})
        _group(found.unknown, name, {host: one.seen for host, one in told.items() if one.state == "unknown"})
    return found


def _group(into: dict[str, str], name: str, seen: Mapping[str, str]) -> None:
    """What several nodes say is told once."""
    hosts: dict[str, list[str]] = {}
    for host, words in seen.items():
        hosts.setdefault(f"{name}: {words}", []).append(host)
    for words, names in hosts.items():
        into[words] = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
