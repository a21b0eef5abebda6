"""Command lines of a task: a driver in a Ray cluster, or ranks under torchrun."""

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
    """Ranks that torchrun starts on each node."""

    ranks_per_node: int
    num_threads: int | None
    """OMP_NUM_THREADS of each rank; None: the node agent divides the cores."""


@dataclass(frozen=True)
class ExternalPlan:
    """Command lines of an external trainer."""

    first: tuple[str, ...]
    """Command of the first attempt."""
    later: tuple[str, ...]
    """Command of later attempts; name and step of the checkpoint are filled in at their start."""
    layout: str | None = None
    """Row of LAYOUTS that finds the checkpoint; without a checkpoint a later attempt runs `first`."""
    before_limit: tuple[str, ...] = ()
    """Arguments added in a job with a time limit; its end is filled in at the start of an attempt."""
    limit_message: str | None = None
    """Output of the program that ended early because of them."""


@dataclass(frozen=True)
class Rendezvous:
    """Address of torchrun's store on node 0."""

    address: str
    port: int | str
    """A placeholder text in a rendered plan."""
    timeout_s: float
    """Time that torchrun waits for the other nodes."""


def build_driver_argv(task: str, python: str, run_dir: str) -> tuple[str, ...]:
    """Return argv of the driver under Ray, or of each rank under torchrun; the agent adds `--attempt <n>`."""
    if TASKS[task].is_external:
        return (python, "-u", "-m", "slurm_rl.node.external", "--run-dir", run_dir)
    if TASKS[task].under_torchrun:
        return (python, "-u", "-m", "slurm_rl.node.rank", _SUPERVISED, run_dir)
    return (python, "-u", "-m", "slurm_rl.trainers.grpo.main", "--run-dir", run_dir)


def build_torchrun_argv(
    plan: TorchrunPlan, python: str, rank_argv: tuple[str, ...], *, node: int | str, num_nodes: int, meet: Rendezvous
) -> list[str]:
    """Return argv of a node's torchrun.

    The static rendezvous keeps our node ranks, so that rank 0 is on the head node, whose port is reserved; c10d would
    order nodes by host name. torchrun does not restart ranks: the controller starts a new attempt.

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
_SINK_NAMES = {
    "mlflow": ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"),
    "otel": ("OTEL_EXPORTER_OTLP_HEADERS",),
}
# Variables of s3fs and gcsfs; a container's environment has only named variables.
_BUCKET_NAMES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL",
    "GOOGLE_APPLICATION_CREDENTIALS",
)


def secret_names(config: RunConfig) -> tuple[str, ...]:
    """Return the secret variables of every run, those of its sinks and judges, and those of buckets if it uses a URL.

    GOOGLE_APPLICATION_CREDENTIALS names a file, which container.mounts must include.
    """
    from slurm_rl.config.sources import list_judges  # pydantic, which the node agent lacks

    rows = [config.data, *config.data.sources.values()]
    sets = [one.data for one in config.eval.sets.values()]
    places = (config.checkpoint.upload_url, *sets, *(place for one in rows for place in (one.train, one.eval)))
    on_urls = any(place is not None and is_url(place) for place in places)
    sinks = {name: names for name, names in _SINK_NAMES.items() if getattr(config.logging, name).is_on}
    names = [
        *SECRET_NAMES,
        *(name for names in sinks.values() for name in names),
        *(judge.api_key for judge in list_judges(config) if judge.api_key),
    ]
    return (*dict.fromkeys(names), *(_BUCKET_NAMES if on_urls else ()))
