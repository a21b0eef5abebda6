"""What must be the same on all machines of a run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.topology import ActorPlan

# The head alone chooses these, and tells.
_OF_THE_HEAD = ("run_dir", "cluster.num_nodes", "cluster.head_port")


def find_difference(head: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> str | None:
    """The first key in which two configs differ, with both values; None when there is none.

    >>> find_difference({"a": {"b": 1}, "run_dir": "/x"}, {"a": {"b": 2}, "run_dir": "/y"})
    'a.b=2, on the head 1'
    """
    for key in sorted({*head, *other}):
        path = f"{prefix}{key}"
        mine, its = head.get(key), other.get(key)
        if path in _OF_THE_HEAD or mine == its:
            continue
        if isinstance(mine, Mapping) and isinstance(its, Mapping):
            if found := find_difference(mine, its, f"{path}."):
                return found
        else:
            return f"{path}={its}, on the head {mine}"
    return None


def why_run_dir_must_be_shared(plan: JobPlan, *, builds_model: bool) -> str | None:
    """What other nodes than the head would read or write in the run directory; None when it is nothing.

    Args:
        builds_model: the model lies in the run directory.
    """
    elsewhere = [actor for actor in plan.actors if actor.node > 0]
    trained = [actor for actor in elsewhere if actor.role != "rollout"]
    if trained:
        return f"{_describe(trained[0])} writes its part of the checkpoints there"
    if elsewhere and builds_model:
        return f"{_describe(elsewhere[0])} loads the tiny model from there"
    return None


def _describe(actor: ActorPlan) -> str:
    return f"{actor.role}-{actor.index} on node {actor.node}"
