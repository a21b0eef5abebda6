"""A GPU type in the words of the cluster: Slurm compares them letter by letter, and each site has its own. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from slurm_rl.launchers.slurm.partitions import PartitionInfo, parse_gpus
from slurm_rl.plan.job import JobPlan

# A slice of a GPU has the name of the whole in its own.
_SLICE = re.compile(r"\d+g\.\d+gb")


def spell_gpus(plan: JobPlan, chosen: Sequence[PartitionInfo]) -> JobPlan:
    """The plan with each GPU type of --gres as these partitions spell it; as it was where they have no such type."""
    gres = str(plan.sbatch.get("gres", ""))
    offered = {kind for partition in chosen for group in partition.groups for kind in group.gpus if kind}
    spelled = gres
    for asked in filter(None, parse_gpus(gres)):
        found = find_spelling(asked, offered) or asked
        spelled = re.sub(rf"\bgpu:{re.escape(asked)}(?=[:,]|$)", f"gpu:{found}", spelled)
    return plan if spelled == gres else replace(plan, sbatch={**plan.sbatch, "gres": spelled})


def find_spelling(asked: str, offered: Collection[str]) -> str | None:
    """The one type that means the same; None when there is none, or several could be meant.

    >>> find_spelling("h100", ["H100", "v100"]), find_spelling("h100", ["nvidia_h100_80gb_hbm3", "a100_3g.20gb"])
    ('H100', 'nvidia_h100_80gb_hbm3')
    >>> find_spelling("a100", ["a100_3g.20gb"]), find_spelling("a100", ["a100-40", "a100-80"])
    (None, None)
    """
    if asked in offered:
        return asked
    same = [kind for kind in offered if kind.lower() == asked.lower()]
    whole = [kind for kind in offered if not _SLICE.search(kind.lower())]
    named = [kind for kind in whole if asked.lower() in re.split("[^a-z0-9]+", kind.lower())]
    alike = same or named
    return alike[0] if len(alike) == 1 else None
