"""Which bad nodes a job is kept off, so that a wrong check cannot eat the cluster. Pure.

>>> bad = {"n2": Evidence.found("n2", "ecc", "a row", "hard", attempt=1, now=0.0)}
>>> choose_excluded(bad, [Part(Pool({"n1", "n2", "n3"}, {"n1", "n2", "n3"}), 2)], share=0.1)
Exclusion(names=['n2'], kept={})
>>> choose_excluded(bad, [Part(Pool({"n1", "n2", "n3"}, {"n1", "n2"}), 2)], share=0.1).kept
{'n2': 'without it 1 node is left for a job of 2'}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_rl.plugins.health.nodes.evidence import Evidence


@dataclass(frozen=True)
class Pool:
    """The nodes of a partition."""

    names: Collection[str]
    usable: Collection[str]
    """In service, and such that the job fits on them."""


@dataclass(frozen=True)
class Part:
    """Nodes that a job asks for in one go: all of them, or those of one kind."""

    pool: Pool
    needed: int
    """Spares included."""
    kind: str = ""
    """Empty where all nodes are alike."""


@dataclass(frozen=True)
class Exclusion:
    """What Slurm is to be told."""

    names: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    """Bad nodes that are not excluded -> why not."""


def choose_excluded(
    bad: Mapping[str, Evidence],
    parts: Sequence[Part],
    *,
    share: float,
    excluded: Collection[str] = (),
    required: Collection[str] = (),
) -> Exclusion:
    """The newest hard evidence first. Names that no partition has are dropped: one of them would make Slurm refuse the
    whole list.

    Args:
        parts: of the job; none of them may be left without nodes.
        share: of a partition that may be excluded; one node always may.
        excluded: that the user excludes; they are not counted, and gone in any case.
        required: that the user names; one of them excluded as well would never start.
    """
    found, gone = Exclusion(), set(excluded)
    for node in sorted(bad, key=lambda name: (bad[name].strength != "hard", -bad[name].time)):
        concerned = [part for part in parts if node in part.pool.names]
        if not concerned or node in excluded:
            continue
        if node in required:
            found.kept[node] = "cluster.slurm.nodelist asks for it"
        elif why := _why_not(node, parts, concerned, gone, found.names, share):
            found.kept[node] = why
        else:
            found.names.append(node)
            gone.add(node)
    return found


def _why_not(
    node: str, parts: Sequence[Part], concerned: Sequence[Part], gone: set[str], names: Sequence[str], share: float
) -> str | None:
    """What speaks against excluding one more."""
    for part in concerned:
        most = max(1, int(share * len(part.pool.names)))
        if sum(name in part.pool.names for name in names) >= most:
            return f"{most} of {len(part.pool.names)} nodes may be excluded (preflight.max_excluded_share)"
    # Kinds may share nodes, so what all of them need is counted, too.
    whole = Part(Pool((), set().union(*(part.pool.usable for part in parts))), sum(part.needed for part in parts))
    for part in [*concerned, whole]:
        left = set(part.pool.usable) - gone - {node}
        if len(left) < part.needed:
            are = "node is" if len(left) == 1 else "nodes are"
            job = f"the {part.needed} of {part.kind}" if part.kind else f"a job of {part.needed}"
            return f"without it {len(left)} {are} left for {job}"
    return None
