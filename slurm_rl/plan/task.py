"""Which program a task runs, and what starts it: a driver inside a Ray cluster, or ranks under torchrun. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_rl.config.paths import is_url
from slurm_rl.config.tasks import TASKS

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig


_SUPERVISED = "slurm_rl.trainers.supervised"


@dataclass(frozen=True)
class TorchrunPlan:
    """How torchrun starts the ranks of one node; all nodes have the same number."""

    ranks_per_node: int
    num_threads: int | None
    """OMP_NUM_THREADS of each rank; None where nobody knows the cores yet: its node's agent then shares them."""


@dataclass(frozen=True)
class ExternalPlan:
    """Command lines of an external trainer."""

    first: tuple[str, ...]
    """Of the first attempt."""
    later: tuple[str, ...]
    """Of those after it, which resume from a checkpoint; its name and step are filled in when one starts."""
    layout: str | None = None
    """Row of LAYOUTS, by which a later attempt finds it; where it finds none, that has the first one's words."""


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of one attempt meet: the store that torchrun of node 0 serves."""

    address: str
    port: int | str
    """A text where only the job will know it."""
    timeout_s: float
    """How long torchrun of a node waits for the others."""


def build_driver_argv(task: str, python: str, run_dir: str) -> tuple[str, ...]:
    """argv of the trainer: under Ray of its one driver, under torchrun of each rank; the agent adds `--attempt <n>`."""
    if TASKS[task].is_external:
        return (python, "-u", "-m", "slurm_rl.node.external", "--run-dir", run_dir)
    if TASKS[task].under_torchrun:
        return (python, "-u", "-m", "slurm_rl.node.rank", _SUPERVISED, run_dir)
    return (python, "-u", "-m", "slurm_rl.trainers.grpo.main", "--run-dir", run_dir)


def build_torchrun_argv(
    plan: TorchrunPlan, python: str, rank_argv: tuple[str, ...], *, node: int | str, num_nodes: int, meet: Rendezvous
) -> list[str]:
    """argv of the one torchrun of a node.

    The static rendezvous keeps our node ranks, so that rank 0 is on the head node, whose port is the one
    that was proven free; c10d would number the nodes by host name. torchrun itself restarts nothing: after a
    dead rank the controller starts a new attempt, from the newest checkpoint.

    >>> argv = build_torchrun_argv(TorchrunPlan(2, 1), "python", ("a.py",), node=1, num_nodes=2,
    ...                            meet=Rendezvous("10.0.0.1", 10300, 600.0))
    >>> argv[3:8]
    ['--nnodes=2', '--nproc-per-node=2', '--node-rank=1', '--rdzv-backend=static', '--master-addr=10.0.0.1']
    """
    return [
        *(python, "-m", "slurm_rl.node.bound_torchrun"),
        f"--nnodes={num_nodes}",
        f"--nproc-per-node={plan.ranks_per_node}",
        f"--node-rank={node}",
        "--rdzv-backend=static",
        f"--master-addr={meet.address}",
        f"--master-port={meet.port}",
        f"--rdzv-conf=timeout={int(meet.timeout_s)}",
        "--max-restarts=0",
        "--no-python",
        *rank_argv,
    ]


SECRET_NAMES = ("WANDB_API_KEY", "HF_TOKEN")
# What s3fs and gcsfs look for; a container's environment has only what is named.
_BUCKET_NAMES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL",
    "GOOGLE_APPLICATION_CREDENTIALS",
)


def secret_names(config: RunConfig) -> tuple[str, ...]:
    """Those of every run, and those of buckets where the run has something on a URL.

    GOOGLE_APPLICATION_CREDENTIALS names a file, which container.mounts must bring.
    """
    rows = [config.data, *config.data.sources.values()]
    sets = [one.data for one in config.eval.sets.values()]
    places = (config.checkpoint.url, *sets, *(place for one in rows for place in (one.train, one.eval)))
    on_urls = any(place is not None and is_url(place) for place in places)
    return SECRET_NAMES + (_BUCKET_NAMES if on_urls else ())
