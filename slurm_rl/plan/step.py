"""What starts the node agents, as argv, and what a Ray cluster of others is asked to run; `plan` shows both. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slurm_rl.plan.container import ContainerPlan, Mount, Wrapped, with_setup, wrap
from slurm_rl.plan.job import HOSTS_VARIABLE, JobPlan
from slurm_rl.plan.sbatch import escape_percent

TASK_LOG = "task-"
"""Begins the name of what a task of srun says before its agent writes a log of its own."""


def wrap_agent(plan: JobPlan, attempt: int, job_key: str, user: tuple[int, int] | None, *words: str) -> Wrapped:
    """A node agent, the same on every node, in its container.

    Args:
        user: uid and gid of whoever runs the job; None is root.
        words: further arguments of the agent.
    """
    agent = [plan.python, "-u", "-m", "slurm_rl.node.agent", "--run-dir", plan.run_dir, "--attempt", str(attempt)]
    return wrap(
        [*agent, *words],
        {"PYTHONPATH": f"{plan.run_dir}/code"},
        own_mounts(plan, plan.run_dir),
        ContainerPlan.from_json(plan.container),
        accelerator=plan.accelerator,
        name=f"srl-{job_key}-{attempt}",
        inherited=[*plan.secret_names, HOSTS_VARIABLE],
        user=user,
        rdma=plan.num_nodes > 1,
    )


def copy_argv(plan: JobPlan, attempt: int) -> list[str]:
    """What copies to `plan.copies_to` what the attempt leaves."""
    argv = [plan.python, "-m", "slurm_rl.checkpoints.final_copy", "--run-dir", plan.run_dir]
    return [*argv, "--attempt", str(attempt), "--url", str(plan.copies_to)]


def wrap_copy(plan: JobPlan, attempt: int, job_key: str, user: tuple[int, int] | None) -> Wrapped:
    """The same outside a node agent, in the image that has what the URL needs."""
    name = f"srl-{job_key}-{attempt}-copy"
    return _wrap(plan, copy_argv(plan, attempt), plan.run_dir, name, user, inherited=plan.secret_names)


def own_mounts(plan: JobPlan, folder: str) -> list[Mount]:
    """The folder, and cluster.tmp_root: the disk that the preflight looked at, where a container has memory."""
    is_users = any(mount["target"] == plan.tmp_root for mount in plan.container["mounts"])
    tmp = [] if is_users else [Mount(plan.tmp_root, plan.tmp_root)]
    # In this order, for the folder may lie below the other.
    return [*tmp, Mount(folder, folder)]


def node_words(rank: int | str, num_nodes: int, job_key: str) -> tuple[str, ...]:
    """What tells an agent which node it is, where no srun does."""
    return ("--rank", str(rank), "--num-nodes", str(num_nodes), "--job-key", job_key)


def wrap_report(plan: JobPlan, folder: str, name: str, user: tuple[int, int] | None) -> Wrapped:
    """What tells the versions in the plan's image, in the container that a node agent gets.

    Args:
        folder: holds `code/`, the snapshot; the run directory, or one made for the question.
    """
    return _wrap(plan, [plan.python, "-m", "slurm_rl.node.image_report", *plan.expected], folder, name, user)


def wrap_doctor(plan: JobPlan, folder: str, name: str, user: tuple[int, int] | None) -> Wrapped:
    """Return the command that checks a node, with the devices of a run's container.

    Args:
        folder: holds `code/` and plan.json; gets the answers.
    """
    argv = [plan.python, "-m", "slurm_rl.plugins.health.doctor_node", folder]
    return _wrap(plan, argv, folder, name, user, rdma=plan.num_nodes > 1)


def wrap_fabric(
    plan: JobPlan, words: Sequence[str], name: str, user: tuple[int, int] | None, inherited: Sequence[str]
) -> Wrapped:
    """A node in the preflight's test of the fabric, with the devices by which a run's ranks reduce.

    Args:
        words: where its leader is.
        inherited: the variable that holds the word by which that knows it.
    """
    argv = [plan.python, "-m", "slurm_rl.plugins.health.fabric_node", plan.run_dir, *words]
    return _wrap(plan, argv, plan.run_dir, name, user, inherited, rdma=plan.num_nodes > 1)


def _wrap(
    plan: JobPlan,
    argv: Sequence[str],
    folder: str,
    name: str,
    user: tuple[int, int] | None,
    inherited: Sequence[str] = (),
    *,
    rdma: bool = False,
) -> Wrapped:
    return wrap(
        argv,
        {"PYTHONPATH": f"{folder}/code"},
        own_mounts(plan, folder),
        ContainerPlan.from_json(plan.container),
        accelerator=plan.accelerator,
        name=name,
        inherited=inherited,
        user=user,
        rdma=rdma,
    )


@dataclass(frozen=True)
class StepPart:
    """Nodes that one part of an srun starts on; a job of one component has one.

    StepPart(("n7", "n8"), 1, "16") is two nodes of the second component, with 16 cores on each.
    """

    nodes: Sequence[str]
    group: int | None = None
    """Which component of a heterogeneous job they are in; None: the job is none."""
    cpus: str | int | None = None
    """Cores on each of them; None: what Slurm gives."""


def build_nodes_step(plan: JobPlan, parts: Sequence[StepPart], logs: str, wrapped: Wrapped) -> list[str]:
    """The one srun that starts every node agent."""
    # One node's end is the attempt's end: the others would wait for it until a deadline.
    options = ["--kill-on-bad-exit=1", "--unbuffered"]
    # What comes before the agent, which has a log of its own: its number is not the task's.
    names = [f"{escape_percent(logs)}/{task_log(part.group)}%t.log" for part in parts]
    by_part = [[*options, f"--output={name}", f"--error={name}", *wrapped.srun_args] for name in names]
    return build_srun(parts, with_host_setup(plan, wrapped.argv), by_part)


def task_log(group: int | None) -> str:
    """What the name of a task's own log begins with; each component numbers its tasks by itself."""
    return TASK_LOG if group is None else f"{TASK_LOG}{group}-"


def build_srun(parts: Sequence[StepPart], command: Sequence[str], options: Sequence[Sequence[str]] = ()) -> list[str]:
    """srun of this command with one task on each of these nodes and all of the job's share of them.

    Args:
        options: more of them for each part.

    >>> print(" ".join(build_srun([StepPart(["n1"], 0), StepPart(["n5"], 1)], ["true"])))  # doctest: +ELLIPSIS
    srun --het-group=0 --nodes=1 ... --nodelist=n1 ... true : --het-group=1 --nodes=1 ... --nodelist=n5 ... true
    """
    argv = ["srun"]
    for place, part in enumerate(parts):
        size = len(part.nodes)
        argv += [":"] if place else []
        argv += [f"--het-group={part.group}"] if part.group is not None else []
        argv += [f"--nodes={size}", f"--ntasks={size}", "--ntasks-per-node=1", "--mpi=none"]
        # Overlapping, because a step whose node is gone holds its share of the others until Slurm gives it up.
        # srun numbers its tasks in an order of its own, so a task finds its rank by its node's place in our list.
        argv += [f"--nodelist={','.join(part.nodes)}", "--overlap", "--mem=0"]
        # Since Slurm 22.05 srun does not take this from sbatch by itself, and Ray would run on one core.
        argv += [f"--cpus-per-task={part.cpus}"] if part.cpus else []
        argv += [*(options[place] if options else ()), *command]
    return argv


def with_host_setup(plan: JobPlan, argv: Sequence[str]) -> list[str]:
    """argv after the lines of cluster.setup; under pyxis, where they would run in the container, argv itself."""
    is_host = ContainerPlan.from_json(plan.container).starts_on_the_host
    return with_setup(plan.setup if is_host else (), argv)


# Seconds in which a job that `ray job stop` ends may save, at the least.
_LEAST_STOP_S = 10


def build_request(plan: JobPlan, job_id: str, package_uri: str) -> dict[str, Any]:
    """Ray's JobSubmitRequest: one driver, in the shipped working directory. No secret and no token is in it."""
    python = plan.python
    return {
        "submission_id": job_id,
        "entrypoint": f"exec {shlex.join([python, '-u', '-m', 'slurm_rl.launchers.ray.allocation', job_id])}",
        "runtime_env": {
            "working_dir": package_uri,
            "env_vars": {
                **plan.env,
                # `ray job stop` is SIGTERM, and SIGKILL 3 s later, in which nothing is saved.
                "RAY_JOB_STOP_WAIT_TIME_S": str(max(_LEAST_STOP_S, plan.limits.signal_lead_s)),
            },
        },
        "metadata": {"slurm_rl": plan.slurm_rl_version, "run_dir": plan.run_dir},
    }
