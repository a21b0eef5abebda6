"""Commands that start the node agents, and the request to an existing Ray cluster; `plan` shows both."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slurm_rl.plan.container import ContainerPlan, Mount, Wrapped, with_setup, wrap
from slurm_rl.plan.job import HOSTS_VARIABLE, JobPlan
from slurm_rl.plan.sbatch import escape_percent

TASK_LOG = "task-"
"""Prefix of the log of an srun task, before its agent opens its own."""


def wrap_agent(plan: JobPlan, attempt: int, job_key: str, user: tuple[int, int] | None, *words: str) -> Wrapped:
    """Return the node agent in its container, the same on every node.

    Args:
        user: uid and gid of the job's user; None: root.
        words: further arguments of the agent.
    """
    agent = [plan.python, "-u", "-m", "slurm_rl.node.agent", "--run-dir", plan.run_dir, "--attempt", str(attempt)]
    name, inherited = f"srl-{job_key}-{attempt}", [*plan.secret_names, HOSTS_VARIABLE]
    return _wrap(plan, [*agent, *words], plan.run_dir, name, user, inherited, rdma=plan.num_nodes > 1)


def copy_argv(plan: JobPlan, attempt: int) -> list[str]:
    """Return argv that uploads logs and export of the attempt to `plan.copies_to`."""
    argv = [plan.python, "-m", "slurm_rl.models.checkpoint.final_copy", "--run-dir", plan.run_dir]
    return [*argv, "--attempt", str(attempt), "--url", str(plan.copies_to)]


def wrap_copy(plan: JobPlan, attempt: int, job_key: str, user: tuple[int, int] | None) -> Wrapped:
    """Return the upload in its container, for use outside a node agent."""
    name = f"srl-{job_key}-{attempt}-copy"
    return _wrap(plan, copy_argv(plan, attempt), plan.run_dir, name, user, inherited=plan.secret_names)


def own_mounts(plan: JobPlan, folder: str) -> list[Mount]:
    """Return the mounts of the folder and of cluster.tmp_root, the node's disk."""
    is_mounted = any(mount["target"] == plan.tmp_root for mount in plan.container["mounts"])
    tmp = [] if is_mounted else [Mount(plan.tmp_root, plan.tmp_root)]
    # In this order, since the folder may be below tmp_root.
    return [*tmp, Mount(folder, folder)]


def node_words(rank: int | str, num_nodes: int, job_key: str) -> tuple[str, ...]:
    """Return the arguments that identify the node to an agent without srun."""
    return ("--rank", str(rank), "--num-nodes", str(num_nodes), "--job-key", job_key)


def wrap_checks(plan: JobPlan, argv: Sequence[str], folder: str, name: str, user: tuple[int, int] | None) -> Wrapped:
    """Return checks of a node in a container like the node agent's, with the devices of a run's ranks.

    Args:
        folder: contains `code/` and plan.json: the run directory or a temporary one.
    """
    return _wrap(plan, argv, folder, name, user, rdma=plan.num_nodes > 1)


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
    """Nodes of one component of an srun step.

    StepPart(("n7", "n8"), 1, "16") is two nodes of the second component with 16 cores each.
    """

    nodes: Sequence[str]
    group: int | None = None
    """Component of a heterogeneous job; None for other jobs."""
    cpus: str | int | None = None
    """Cores per node; None: Slurm's default."""


def build_nodes_step(plan: JobPlan, parts: Sequence[StepPart], logs: str, wrapped: Wrapped) -> list[str]:
    """Return the srun that starts all node agents."""
    # A lost node ends the attempt; the others would wait for it until a timeout.
    options = ["--kill-on-bad-exit=1", "--unbuffered"]
    # Output before the agent opens its own log, numbered by task.
    names = [f"{escape_percent(logs)}/{task_log(part.group)}%t.log" for part in parts]
    by_part = [[*options, f"--output={name}", f"--error={name}", *wrapped.srun_args] for name in names]
    return build_srun(parts, with_host_setup(plan, wrapped.argv), by_part)


def task_log(group: int | None) -> str:
    """Return the prefix of a task's log; each component numbers its tasks from 0."""
    return TASK_LOG if group is None else f"{TASK_LOG}{group}-"


def build_srun(parts: Sequence[StepPart], command: Sequence[str], options: Sequence[Sequence[str]] = ()) -> list[str]:
    """Return an srun of the command with one task per node and all of the job's resources on it.

    Args:
        options: further options of each part.

    >>> print(" ".join(build_srun([StepPart(["n1"], 0), StepPart(["n5"], 1)], ["true"])))  # doctest: +ELLIPSIS
    srun --het-group=0 --nodes=1 ... --nodelist=n1 ... true : --het-group=1 --nodes=1 ... --nodelist=n5 ... true
    """
    argv = ["srun"]
    for place, part in enumerate(parts):
        size = len(part.nodes)
        argv += [":"] if place else []
        argv += [f"--het-group={part.group}"] if part.group is not None else []
        argv += [f"--nodes={size}", f"--ntasks={size}", "--ntasks-per-node=1", "--mpi=none"]
        # --overlap: a step with a lost node holds its resources on the others until Slurm ends it.
        # srun has its own task order, so a task finds its rank by its node's place in our list.
        argv += [f"--nodelist={','.join(part.nodes)}", "--overlap", "--mem=0"]
        # Since Slurm 22.05 srun does not inherit it from sbatch, and Ray would run on one core.
        argv += [f"--cpus-per-task={part.cpus}"] if part.cpus else []
        argv += [*(options[place] if options else ()), *command]
    return argv


def with_host_setup(plan: JobPlan, argv: Sequence[str]) -> list[str]:
    """Return argv behind the lines of cluster.setup, or argv itself with pyxis, where they would run in the
    container."""
    is_host = ContainerPlan.from_json(plan.container).starts_on_the_host
    return with_setup(plan.setup if is_host else (), argv)


# Minimum seconds for a checkpoint after `ray job stop`.
_LEAST_STOP_S = 10


def build_request(plan: JobPlan, job_id: str, package_uri: str) -> dict[str, Any]:
    """Return Ray's JobSubmitRequest for the driver in the uploaded working directory, without secrets."""
    return {
        "submission_id": job_id,
        "entrypoint": f"exec {shlex.join([plan.python, '-u', '-m', 'slurm_rl.launch.ray.allocation', job_id])}",
        "runtime_env": {
            "working_dir": package_uri,
            "env_vars": {
                **plan.env,
                # Ray sends SIGKILL 3 s after SIGTERM, too early to save a checkpoint.
                "RAY_JOB_STOP_WAIT_TIME_S": str(max(_LEAST_STOP_S, plan.limits.checkpoint_lead_s)),
            },
        },
        "metadata": {"slurm_rl": plan.slurm_rl_version, "run_dir": plan.run_dir},
    }
