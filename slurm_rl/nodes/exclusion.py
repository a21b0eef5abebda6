"""Which bad nodes a job is kept off, so that a wrong check cannot eat the cluster. Pure.

>>> bad = {"n2": Evidence.found("n2", "ecc", "a row", "hard", attempt=1, now=0.0)}
>>> choose_excluded(bad, Pool({"n1", "n2", "n3"}, {"n1", "n2", "n3"}), needed=2, share=0.1)
Exclusion(names=['n2'], kept={})
>>> choose_excluded(bad, Pool({"n1", "n2", "n3"}, {"n1", "n2"}), needed=2, share=0.1).kept
{'n2': 'without it 1 node is left for a job of 2'}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from slurm_rl.nodes.evidence import Evidence


@dataclass(frozen=True)
class Pool:
    """The nodes of a partition."""

    names: Collection[str]
    usable: Collection[str]
    """In service, and such that the job fits on them."""


@dataclass(frozen=True)
class Exclusion:
    """What Slurm is to be told."""

    names: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    """Bad nodes that are not excluded -> why not."""


def choose_excluded(
    bad: Mapping[str, Evidence],
    pool: Pool,
    *,
    needed: int,
    share: float,
    excluded: Collection[str] = (),
    required: Collection[str] = (),
) -> Exclusion:
    """The newest hard evidence first. Names that the partition does not have are dropped: one of them would make Slurm
    refuse the whole list.

    Args:
        needed: nodes of the job, spares included.
        share: of the partition that may be excluded; one node always may.
        excluded: that the user excludes; they are not counted, and gone in any case.
        required: that the user names; one of them excluded as well would never start.
    """
    most = max(1, int(share * len(pool.names)))
    left = set(pool.usable) - set(excluded)
    found = Exclusion()
    for node in sorted(bad, key=lambda name: (bad[name].strength != "hard", -bad[name].time)):
        if node not in pool.names or node in excluded:
            continue
        rest = left - {node}
        if node in required:
            found.kept[node] = "cluster.slurm.nodelist asks for it"
        elif len(found.names) >= most:
            found.kept[node] = f"{most} of {len(pool.names)} nodes may be excluded (preflight.max_excluded_share)"
        elif len(rest) < needed:
            are = "node is" if len(rest) == 1 else "nodes are"
            found.kept[node] = f"without it {len(rest)} {are} left for a job of {needed}"
        else:
            found.names.append(node)
            left = rest
    return found
