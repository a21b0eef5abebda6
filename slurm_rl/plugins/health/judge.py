"""Decide from the verdicts of all nodes which nodes are left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_rl.plugins.health.script import Output
from slurm_rl.plugins.health.table import Check
from slurm_rl.plugins.health.verdict import NodeSpec, Verdict

Verdicts = dict[str, dict[str, Verdict]]
"""Node -> check -> verdict."""
_MIN_COMMON = 2


@dataclass(frozen=True)
class Decision:
    """Consequences of the verdicts for the attempt."""

    unfit: dict[str, dict[str, str]] = field(default_factory=dict)
    """Node -> check -> text, for nodes to leave out."""
    common: dict[str, str] = field(default_factory=dict)
    """Check -> text, for checks that failed on so many nodes that the cause is not the nodes."""
    refused: dict[str, str] = field(default_factory=dict)
    """Check -> node and text, for failed checks with policy `refuse`."""
    warned: dict[str, str] = field(default_factory=dict)
    """`check: text` -> nodes."""
    unknown: dict[str, str] = field(default_factory=dict)
    """`check: text` -> nodes."""


def judge_nodes(
    outputs: Mapping[str, Mapping[str, Output]], checks: Sequence[Check], spec: NodeSpec, hosts: Sequence[str]
) -> Verdicts:
    """Return the verdicts on all nodes that answered.

    Args:
        outputs: node -> source -> output.
        hosts: nodes of one kind; nodes without output get no verdicts.
    """
    verdicts: Verdicts = {host: {} for host in hosts if host in outputs}
    for check in checks:
        if check.parse is None:
            continue
        found = {host: _judge(check, outputs[host].get(check.source), spec) for host in verdicts}
        for host, verdict in (check.compare(found) if check.compare else found).items():
            verdicts[host][check.name] = verdict
    return verdicts


def _judge(check: Check, output: Output | None, spec: NodeSpec) -> Verdict:
    assert check.parse is not None
    if output is None or output.rc is None:
        hangs = output is not None or check.name == "files"
        return Verdict("bad" if hangs else "unknown", f"{check.source} did not answer in time")
    verdict = check.parse(output.text, output.rc, spec)
    # Without a complete answer about its files nothing can be started on the node.
    return Verdict("bad", verdict.seen) if check.name == "files" and verdict.state == "unknown" else verdict


def apply_policy(verdicts: Verdicts, policy: Mapping[str, str]) -> Decision:
    """Return the nodes to leave out.

    >>> bad, ok = Verdict("bad", "1 GPU"), Verdict("ok")
    >>> apply_policy({"n1": {"gpus": ok}, "n2": {"gpus": bad}}, {}).unfit
    {'n2': {'gpus': '1 GPU'}}
    >>> decision = apply_policy({"n1": {"gpus": bad}, "n2": {"gpus": bad}, "n3": {"gpus": ok}}, {})
    >>> decision.unfit, decision.common
    ({}, {'gpus': '2 of 3 nodes, n1: 1 GPU'})
    """
    decision = Decision()
    for name in dict.fromkeys(name for by_check in verdicts.values() for name in by_check):
        found = {host: by_check[name] for host, by_check in verdicts.items() if name in by_check}
        bad = {host: verdict.seen for host, verdict in found.items() if verdict.state == "bad"}
        rule = policy.get(name, "exclude")
        first = next(iter(bad), "")
        if rule == "warn":
            _group(decision.warned, name, bad)
        elif bad and rule == "refuse":
            decision.refused[name] = f"{first}: {bad[first]}"
        elif len(bad) >= _MIN_COMMON and 2 * len(bad) >= len(found):
            decision.common[name] = f"{len(bad)} of {len(found)} nodes, {first}: {bad[first]}"
        else:
            for host, seen in bad.items():
                decision.unfit.setdefault(host, {})[name] = seen
        _group(decision.warned, name, {host: one.seen for host, one in found.items() if one.state == "warn"})
        _group(decision.unknown, name, {host: one.seen for host, one in found.items() if one.state == "unknown"})
    return decision


def _group(groups: dict[str, str], name: str, seen: Mapping[str, str]) -> None:
    """Add each text once, with the nodes that share it."""
    hosts: dict[str, list[str]] = {}
    for host, text in seen.items():
        hosts.setdefault(f"{name}: {text}", []).append(host)
    for text, names in hosts.items():
        groups[text] = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
