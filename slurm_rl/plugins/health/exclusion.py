"""Choose the bad nodes to exclude, so that a wrong check cannot exclude the whole cluster.

>>> bad = {"n2": Evidence.new("n2", "ecc", "a row", "hard", attempt=1, now=0.0)}
>>> choose_excluded(bad, [Part({"n1", "n2", "n3"}, {"n1", "n2", "n3"}, 2)], share=0.1)
Exclusion(names=['n2'], skipped={})
>>> choose_excluded(bad, [Part({"n1", "n2", "n3"}, {"n1", "n2"}, 2)], share=0.1).skipped
{'n2': 'without it 1 node is left for a job of 2'}
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from slurm_rl.launch.hooks import Exclusion
from slurm_rl.plugins.health.evidence import Evidence


@dataclass(frozen=True)
class Part:
    """A request of the job for nodes of one kind."""

    names: Collection[str]
    """Nodes of the partition."""
    usable: Collection[str]
    """Nodes in service on which the job fits."""
    needed: int
    """Number of nodes, including spares."""
    kind: str = ""
    """Empty for a job with one kind of nodes."""


def choose_excluded(
    bad: Mapping[str, Evidence],
    parts: Sequence[Part],
    *,
    share: float,
    excluded: Collection[str] = (),
    required: Collection[str] = (),
) -> Exclusion:
    """Choose nodes to exclude, newest hard evidence first.

    Names that are in no partition are dropped: Slurm refuses a list with an unknown name.

    Args:
        share: maximum share of a partition; one node is always allowed.
        excluded: nodes that the user excludes; they do not count.
        required: nodes that the user requests by name.
    """
    found, unavailable = Exclusion(), set(excluded)
    for node in sorted(bad, key=lambda name: (bad[name].strength != "hard", -bad[name].time)):
        concerned = [part for part in parts if node in part.names]
        if not concerned or node in excluded:
            continue
        if node in required:
            found.skipped[node] = "cluster.slurm.nodelist requests it"
        elif reason := _reason_to_keep(node, parts, concerned, unavailable, found.names, share):
            found.skipped[node] = reason
        else:
            found.names.append(node)
            unavailable.add(node)
    return found


def _reason_to_keep(
    node: str, parts: Sequence[Part], concerned: Sequence[Part], unavailable: set[str], names: list[str], share: float
) -> str | None:
    for part in concerned:
        most = max(1, int(share * len(part.names)))
        if sum(name in part.names for name in names) >= most:
            return f"{most} of {len(part.names)} nodes may be excluded (preflight.max_excluded_share)"
    # Kinds may share nodes, so the sum of all kinds is checked as well.
    whole = Part((), set().union(*(part.usable for part in parts)), sum(part.needed for part in parts))
    for part in [*concerned, whole]:
        left = set(part.usable) - unavailable - {node}
        if len(left) < part.needed:
            nodes = "node is" if len(left) == 1 else "nodes are"
            job = f"the {part.needed} of {part.kind}" if part.kind else f"a job of {part.needed}"
            return f"without it {len(left)} {nodes} left for {job}"
    return None
