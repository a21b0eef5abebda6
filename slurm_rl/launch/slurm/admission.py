"""Check whether Slurm accepts a job and can start it, before the job is written or queued.

sinfo shows which number is too large, which Slurm does not report; `sbatch --test-only` then checks the rest
(account, QOS, reservation, limits) and reports it in Slurm's words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from slurm_rl.config.gres import parse_gpus
from slurm_rl.errors import SubmitError
from slurm_rl.launch.slurm import commands
from slurm_rl.launch.slurm.partitions import (
    NodeGroup,
    PartitionInfo,
    Version,
    nodes_out_of_service,
    partitions,
    slurm_version,
    spell_gpus,
)
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.sbatch import submission_argv

OLDEST: Version = (20, 11)
"""First version with srun --overlap, which lets steps share nodes."""
_SINCE: dict[str, Version] = {
    "segment": (24, 5),
    "spread-segments": (25, 11),
    "consolidate-segments": (25, 11),
    "requeue=expedite": (25, 11),
}
"""First version of Slurm with an option; checked before the job is queued, not by an srun that fails in it."""
# Messages of --test-only for a job that sbatch would queue, because nodes are down or reserved now.
_MAY_ONLY_WAIT = ("node configuration is not available", "nodes are busy", "node not available")


def check_admission(plan: JobPlan) -> JobPlan:
    """Check that the cluster accepts the job of this plan.

    Returns:
        The plan with the GPU type as the cluster spells it.

    Raises:
        SubmitError: the cluster refuses; the message has the number that is too large, or Slurm's message.
    """
    if version := slurm_version():
        check_version(plan.sbatch, version)
    spelled = []
    for part in split_components(plan):
        chosen = _choose_partitions(part)
        spelled.append(spell_gpus(part.sbatch, chosen))
        if chosen:
            check_fits(replace(part, sbatch=spelled[-1]), chosen)
    plan = replace(plan, sbatch=spelled[0], het=tuple(spelled[1:]))
    try:
        _test(plan)
    except SubmitError as error:
        if not (any(words in str(error).lower() for words in _MAY_ONLY_WAIT) and nodes_out_of_service()):
            raise
    return plan


def split_components(plan: JobPlan) -> list[JobPlan]:
    """Return one plan per node group, as if it were the whole job."""
    if not plan.het:
        return [plan]
    return [
        replace(plan, sbatch=options, het=(), node_groups=(), num_nodes=kind.count, cpus_per_node=kind.cpus_per_node)
        for kind, options in zip(plan.node_groups, (plan.sbatch, *plan.het), strict=True)
    ]


def _test(plan: JobPlan) -> None:
    # --wrap makes a script of the last component.
    with_script = [{**options, "wrap": "true"} for options in (plan.sbatch, *plan.het)]
    commands.test_only(submission_argv(replace(plan, sbatch=with_script[0], het=tuple(with_script[1:]))))


def check_version(options: Mapping[str, object], version: Version) -> None:
    """Raise SubmitError if this version of Slurm lacks an option of sbatch or of every run."""
    if version < OLDEST:
        raise SubmitError(
            f"slurm_rl needs Slurm {_render(OLDEST)} or later, whose steps can share nodes (srun --overlap)",
            seen=_render(version),
            action="run inside an allocation as on machines without Slurm: python -m slurm_rl join --help",
        )
    for name, value in options.items():
        for option in (name, f"{name}={value}"):
            if version < _SINCE.get(option, version):
                raise SubmitError(
                    f"--{option} is an option of Slurm {_render(_SINCE[option])} and later",
                    seen=_render(version),
                    action=f"leave cluster.slurm.extra.{name.replace('-', '_')} out",
                )


def _render(version: Version) -> str:
    return f"{version[0]}.{version[1]:02}"


def _choose_partitions(plan: JobPlan) -> list[PartitionInfo]:
    """Return the partitions in which the job may start; empty if sinfo hides the configured one."""
    known = partitions()
    asked = plan.sbatch.get("partition")
    if asked is None:
        return [partition for partition in known if partition.is_default]
    chosen = [partition for partition in known if partition.name in str(asked).split(",")]
    if not chosen:
        _refuse_unknown(str(asked), plan, known)
    return chosen


def _refuse_unknown(asked: str, plan: JobPlan, known: Sequence[PartitionInfo]) -> None:
    # A hidden partition is not in sinfo but accepts jobs, so Slurm decides.
    try:
        _test(plan)
    except SubmitError as error:
        names = ", ".join(partition.name for partition in known)
        raise SubmitError(
            f"cluster.slurm.partition must be one that Slurm knows ({error.seen})",
            seen=asked,
            action=f"choose one of: {names}",
        ) from None


def check_fits(plan: JobPlan, chosen: Sequence[PartitionInfo]) -> None:
    """Raise SubmitError, with the first missing resource, if no partition can ever start the job."""
    names = ",".join(partition.name for partition in chosen)
    groups = [group for partition in chosen for group in partition.groups]
    for resource, value, key, fits, offer in _demands(plan):
        if value and not any(fits(group) for group in groups):
            raise SubmitError(
                f"a node of partition {names} must have {resource}",
                seen=f"{value}; the nodes have {_list(offer, groups)}",
                action=f"change {key}, or choose another cluster.slurm.partition",
            )
        groups = [group for group in groups if fits(group)]
    _check_num_nodes(plan, chosen, names, groups)
    _check_time(plan, chosen, names)


_Demand = tuple[str, object, str, Callable[[NodeGroup], bool], Callable[[NodeGroup], str]]


def _demands(plan: JobPlan) -> list[_Demand]:
    """Return (resource, amount, config key, predicate of a group, value of a group), most specific first."""
    gpus = parse_gpus(str(plan.sbatch.get("gres", "")))
    types = "".join(sorted(kind for kind in gpus if kind))
    cpus, asked = plan.cpus_per_node or 0, str(plan.sbatch.get("mem", "0"))
    mem = int(asked[:-1]) if asked.endswith("G") else 0  # in GB

    def has_types(group: NodeGroup) -> bool:
        return all(not kind or kind in group.gpus for kind in gpus)

    def has_gpus(group: NodeGroup) -> bool:
        has = {**group.gpus, "": sum(group.gpus.values())}
        return all(has.get(kind, 0) >= number for kind, number in gpus.items())

    return [
        ("the requested GPU type", types, "cluster.gpu_type (null takes any)", has_types, _render_gpus),
        ("the requested GPUs", sum(gpus.values()), "cluster.gpus_per_node", has_gpus, _render_gpus),
        ("the requested cores", cpus, "cluster.cpus_per_node", lambda g: g.cpus >= cpus, lambda g: str(g.cpus)),
        (
            "the requested memory",
            mem and f"{mem} GB",
            "cluster.mem_gb_per_node",
            lambda group: group.mem_mb >= mem * 1024,
            lambda group: f"{group.mem_mb // 1024} GB",
        ),
    ]


def _render_gpus(group: NodeGroup) -> str:
    return ", ".join(f"{number} {kind or 'untyped'}" for kind, number in group.gpus.items()) or "none"


def _list(offer: Callable[[NodeGroup], str], groups: Sequence[NodeGroup]) -> str:
    return " or ".join(sorted({offer(group) for group in groups})) or "nothing"


def _check_num_nodes(plan: JobPlan, chosen: Sequence[PartitionInfo], names: str, fitting: Sequence[NodeGroup]) -> None:
    # Slurm starts a job within one partition; of several, the largest counts.
    most = max(sum(group.num_nodes for group in partition.groups if group in fitting) for partition in chosen)
    if plan.num_nodes > most:
        raise SubmitError(
            f"partition {names} must have the requested nodes",
            seen=f"{plan.num_nodes}; it has {most} with these GPUs, cores and memory",
            action="lower cluster.num_nodes, or choose another cluster.slurm.partition",
        )


def _check_time(plan: JobPlan, chosen: Sequence[PartitionInfo], names: str) -> None:
    asked = plan.limits.time_limit_min
    limits = [partition.max_time_min for partition in chosen]
    # At most sites, a job above the limit stays in the queue forever without a message.
    if asked and all(limit is not None and asked > limit for limit in limits):
        raise SubmitError(
            f"job.time_limit must be within the limit of partition {names}",
            seen=f"{asked} min > {max(limit for limit in limits if limit is not None)} min",
            action="lower job.time_limit: the run resumes after each limit",
        )
