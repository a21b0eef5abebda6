"""Render a plan as text."""

import json
import shlex

from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.node_groups import NodeGroup, group_of
from slurm_rl.plan.placement import find_idle
from slurm_rl.plan.preflight import describe_preflight
from slurm_rl.plan.sbatch import render_submission
from slurm_rl.plan.step import StepPart, build_nodes_step, build_request, node_words, with_host_setup, wrap_agent
from slurm_rl.plan.task import Rendezvous, build_torchrun_argv


def render_plan(plan: JobPlan) -> str:
    """Return nodes, placement, environment with reasons, commands and sbatch options."""
    secrets = "not sent, the cluster must have them" if plan.address else "passed on by name, never written"
    lines = [
        f"run        {plan.run_dir}",
        f"launcher   {plan.launcher}" + (f", {plan.address}" if plan.address else ""),
        *_nodes(plan),
        f"limits     {_limits(plan)}",
        f"preflight  {describe_preflight(plan.launcher, plan.preflight)}",
        f"container  {plan.container.get('runtime', 'none')} {plan.container.get('image') or ''}".rstrip(),
        *_network(plan),
        *_programs(plan),
        "",
        "placement",
        *(f"  {_place(plan, node)}" for node in range(plan.num_nodes)),
        *(f"  {line}" for line in _layout(plan)),
        "",
        "environment",
        *(f"  {name}={value}    # {plan.env_reasons[name]}" for name, value in plan.env.items()),
        f"  {secrets}: {', '.join(plan.secret_names)}",
    ]
    if plan.setup:
        lines += ["", "setup", *(f"  {line}" for line in plan.setup)]
    if plan.sbatch:
        lines += ["", "submission", render_submission(plan)]
    if plan.address is not None:
        request = json.dumps(build_request(plan, f"{plan.name}-[random]", "gcs://[the code]"), indent=2)
        return "\n".join([*lines, "", f"POST {plan.address}/api/jobs/", request])
    lines += ["", "on the nodes", f"  {shlex.join(_nodes_step(plan))}"]
    return "\n".join(lines)


def _nodes(plan: JobPlan) -> list[str]:
    """Return one line per node group."""
    default = "the cluster's" if plan.address else "Slurm default"
    equal = NodeGroup("", plan.num_nodes, plan.gpus_per_node, plan.cpus_per_node, None, None)
    return [
        f"nodes      {group.count} x "
        + (f"{group.gpus_per_node} {plan.accelerator} GPUs" if group.gpus_per_node else "CPU only")
        + f", {group.cpus_per_node or default} cores"
        + (f" ({group.name})" if group.name else "")
        for group in plan.node_groups or [equal]
    ]


def _nodes_step(plan: JobPlan) -> list[str]:
    """Return the controller's command, with placeholders in brackets for values known only in the job."""
    if not plan.sbatch:
        words = node_words("[rank]", plan.num_nodes, "JOB") if plan.launcher_entry.by_node else node_words(0, 1, "JOB")
        wrapped = wrap_agent(plan, 1, "JOB", None, *words)
        return with_host_setup(plan, wrapped.argv)
    names = [f"[node {rank}]" for rank in range(plan.num_nodes)]
    parts, first = [StepPart(names, cpus=plan.cpus_per_node)], 0
    if plan.node_groups:
        parts = []
        for component, group in enumerate(plan.node_groups):
            parts.append(StepPart(names[first : first + group.count], component, group.cpus_per_node))
            first += group.count
    return build_nodes_step(plan, parts, f"{plan.run_dir}/attempts/1/logs", wrap_agent(plan, 1, "JOB", None))


def _network(plan: JobPlan) -> list[str]:
    if not plan.launcher_entry.by_node:
        return []
    is_auto = "GLOO_SOCKET_IFNAME" not in plan.env
    lines = ["network    the interface that reaches the head, on each machine"] if is_auto else []
    return [*lines, "start      python -m slurm_rl join, with the same overrides on every machine"]


def _programs(plan: JobPlan) -> list[str]:
    """Return the commands on the nodes: the driver, or torchrun with its ranks."""
    if plan.external is not None:
        lines = [f"program    {shlex.join(plan.external.first)}"]
        if plan.external.later != plan.external.first:
            lines.append(f"resumed    {shlex.join(plan.external.later)}")
        if plan.external.before_limit:
            lines.append(f"with limit {shlex.join(plan.external.before_limit)}")
        driver = [f"driver     {shlex.join(plan.driver_argv)}"] if plan.torchrun is None else _render_torchrun(plan)
        return [*driver, *lines]
    if plan.torchrun is None:
        return [f"driver     {shlex.join(plan.driver_argv)}"]
    return _render_torchrun(plan)


def _render_torchrun(plan: JobPlan) -> list[str]:
    assert plan.torchrun is not None
    ranks = plan.torchrun.ranks_per_node
    threads = f", OMP_NUM_THREADS={plan.torchrun.num_threads}" if plan.torchrun.num_threads else ""
    start = build_torchrun_argv(
        plan.torchrun,
        plan.python,
        plan.driver_argv,
        node="[rank of the node]",
        num_nodes=plan.num_nodes,
        meet=Rendezvous("[head]", "[port of the job]", plan.limits.start_timeout_s),
    )
    counts = f"ranks      {plan.num_nodes * ranks}, {ranks} a node{threads}"
    return [counts, f"torchrun   {' '.join(start)}"]


def _layout(plan: JobPlan) -> list[str]:
    if plan.external is not None:
        return []
    idle = find_idle(plan.gpus_by_node, plan.actors)
    lines = [f"idle: {len(idle)} GPUs, from GPU {idle[0][1]} of node {idle[0][0]}"] if idle else []
    if plan.torchrun is None:
        lines.append(f"weight transfer by {plan.weight_transfer}")
    return lines


def _limits(plan: JobPlan) -> str:
    limits = plan.limits
    time = f"{limits.time_limit_min} min" if limits.time_limit_min else "no time limit"
    return f"{time}, {limits.max_failures} failed attempts allowed, bring-up within {limits.start_timeout_s:g} s"


def _place(plan: JobPlan, node: int) -> str:
    actors = [
        f"{actor.role}-{actor.index}" + (f" on GPU {','.join(map(str, actor.gpus))}" if actor.gpus else "")
        for actor in plan.actors
        if actor.node == node
    ]
    head = ("head; " if plan.torchrun else "head, driver; ") if node == 0 else ""
    group = f" ({group_of(plan.node_groups, node).name})" if plan.node_groups else ""
    if plan.external is not None:
        if plan.torchrun is not None:
            return f"node {node}{group}: {'head; ' if node == 0 else ''}{plan.torchrun.ranks_per_node} ranks"
        return f"node {node}{group}: {'head, program; ' if node == 0 else ''}the program places the rest"
    return f"node {node}{group}: {head}{', '.join(actors) or 'nothing'}"
