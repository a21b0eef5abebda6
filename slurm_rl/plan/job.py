"""JobPlan: the result of planning a config, stored as plan.json in the run directory.

`build_plan` is a pure function; facts of the submitting machine are in `SubmitFacts`. The node agent reads plan.json
with the standard library only.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from slurm_rl.config.launchers import LAUNCHERS
from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import RunDirError
from slurm_rl.plan.accelerator import AcceleratorKind, list_variables
from slurm_rl.plan.layout import LayoutPlan, build_layout, check_context, check_heads, choose_tensor_parallel_size
from slurm_rl.plan.memory import ModelShape
from slurm_rl.plan.node_groups import NodeGroup, group_of, list_groups
from slurm_rl.plan.placement import ActorPlan, place_actors
from slurm_rl.plan.preflight import PreflightPlan, build_preflight
from slurm_rl.plan.role_memory import fit_services
from slurm_rl.plan.task import ExternalPlan, TorchrunPlan, build_driver_argv, secret_names
from slurm_rl.plan.transfer import choose_transfer
from slurm_rl.plan.versions import expected_for

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig

PLAN_VERSION = 5
HOSTS_VARIABLE = "SLURM_RL_HOSTS"
"""Comma-separated host names by rank; the controller sets it, since a container has no scontrol."""
NODE_VARIABLE = "SLURMD_NODENAME"
"""Slurm's name of a task's node, which may differ from the host name."""


@dataclass(frozen=True)
class SubmitFacts:
    """Facts of the submitting machine."""

    python: str
    """Path of the running interpreter."""
    num_cpus: int
    """Cores that this process may use."""
    version: str
    """slurm_rl.__version__."""
    model_shape: ModelShape | None = None
    """Shape of the policy, if this machine sees its config.json."""
    reward_shape: ModelShape | None = None
    """Shape of reward.model.path."""
    reference_shape: ModelShape | None = None
    """Shape of reference.path."""


@dataclass(frozen=True)
class RayPlan:
    """The Ray cluster of one attempt."""

    object_store_bytes: int
    dashboard: bool
    dashboard_port: int | None = None
    """None: a port of the job's range."""


@dataclass(frozen=True)
class LimitsPlan:
    """Timeouts and restarts."""

    time_limit_min: int | None
    checkpoint_lead_s: int
    max_failures: int
    start_timeout_s: float
    heartbeat_timeout_s: float = 300.0
    step_timeout_s: float = 3600.0
    learns_lead: bool = False
    """Raise the lead to the measured duration of saves (job.checkpoint_lead_s=auto)."""


@dataclass(frozen=True)
class JobPlan:
    """A job that can be submitted any number of times."""

    version: int
    slurm_rl_version: str
    name: str
    run_dir: str
    launcher: str
    accelerator: AcceleratorKind
    num_nodes: int
    gpus_per_node: int
    cpus_per_node: int | None
    tmp_root: str
    python: str
    """Interpreter on the nodes, inside the container if there is one."""
    host_python: str
    """Interpreter of the controller, outside any container."""
    setup: tuple[str, ...]
    env: dict[str, str]
    """Environment variables of all processes."""
    env_reasons: dict[str, str]
    """Reason for each variable."""
    secret_names: tuple[str, ...]
    driver_argv: tuple[str, ...]
    actors: tuple[ActorPlan, ...]
    layout: LayoutPlan
    ray: RayPlan
    limits: LimitsPlan
    container: dict[str, Any]
    sbatch: dict[str, str | int | bool]
    """Options of sbatch by long name, for the first component; empty for other launchers."""
    num_spare_nodes: int = 0
    """Allocated nodes beyond num_nodes."""
    node_groups: tuple[NodeGroup, ...] = ()
    """Node groups in rank order; empty if all nodes are equal."""
    het: tuple[dict[str, str | int | bool], ...] = ()
    """Options of sbatch for the components after the first."""
    torchrun: TorchrunPlan | None = None
    """Set for tasks under torchrun; None: a Ray cluster with a driver on its head node."""
    external: ExternalPlan | None = None
    """Set for external trainers."""
    expected: dict[str, str] = field(default_factory=dict)
    """Required versions in the trainer's environment; see plan/versions.py."""
    address: str | None = None
    """Dashboard of an existing Ray cluster; None: the run starts its own."""
    weight_transfer: str = "ray"
    """rollout.weight_transfer with auto resolved; see plan/transfer.py."""
    signs_copies: bool = False
    """Checkpoints are uploaded to a URL and signed with a key of the run."""
    copies_to: str | None = None
    """URL for logs and export at the end of an attempt."""
    preflight: PreflightPlan = field(default_factory=PreflightPlan)
    """Node checks before an attempt."""
    after: str | None = None
    """Directory of a run that must finish before this one starts."""

    def gpus_on(self, rank: int) -> int:
        """Return the GPUs of the node with this rank."""
        return group_of(self.node_groups, rank).gpus_per_node if self.node_groups else self.gpus_per_node

    def cpus_on(self, rank: int) -> int | None:
        """Return the cores of the node with this rank; None: Slurm decides."""
        return group_of(self.node_groups, rank).cpus_per_node if self.node_groups else self.cpus_per_node

    @property
    def gpus_by_node(self) -> list[int]:
        return [self.gpus_on(rank) for rank in range(self.num_nodes)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(tree: dict[str, Any]) -> JobPlan:
        """Rebuild a plan; raise RunDirError if its version differs."""
        if tree.get("version") != PLAN_VERSION:
            raise RunDirError(
                f"plan.json must be of version {PLAN_VERSION}",
                seen=tree.get("version"),
                action=f"use slurm_rl {tree.get('slurm_rl_version', 'of the run')}, or start a new run with init_from",
            )
        torchrun, external = tree.get("torchrun"), tree.get("external")
        lists = {name: tuple(tree.get(name, ())) for name in ("setup", "secret_names", "driver_argv", "het")}
        sections = {
            "actors": tuple(ActorPlan(**{**actor, "gpus": tuple(actor["gpus"])}) for actor in tree["actors"]),
            "layout": LayoutPlan.from_json(tree["layout"]),
            "node_groups": tuple(NodeGroup(**group) for group in tree.get("node_groups", ())),
            "ray": RayPlan(**tree["ray"]),
            "limits": LimitsPlan(**tree["limits"]),
            "preflight": PreflightPlan.from_json(tree.get("preflight", {})),
            "torchrun": TorchrunPlan(**torchrun) if torchrun else None,
            "external": _read_external(external) if external else None,
        }
        return JobPlan(**{**tree, **lists, **sections})


def _read_external(tree: dict[str, Any]) -> ExternalPlan:
    return ExternalPlan(**{**tree, "first": tuple(tree["first"]), "later": tuple(tree["later"])})


def build_plan(config: RunConfig, run_dir: str, facts: SubmitFacts) -> JobPlan:
    """Plan a run; `run_dir` is an absolute path.

    Raises:
        ConfigError: the layout is impossible; the message has both numbers.
    """
    cluster = config.cluster
    launcher = LAUNCHERS[cluster.launcher]
    cpus = cluster.cpus_per_node or (facts.num_cpus if launcher.on_this_machine else None)
    actors, layout = _lay_out(config, facts, cpus)
    python = _choose_python(config, facts)
    sbatch, *het = load_function(launcher.options)(config, run_dir) if launcher.options else [{}]
    variables = list_variables(config, run_dir)
    return JobPlan(
        version=PLAN_VERSION,
        slurm_rl_version=facts.version,
        name=config.name,
        run_dir=run_dir,
        launcher=cluster.launcher,
        accelerator=cluster.accelerator,
        num_nodes=cluster.num_nodes,
        gpus_per_node=cluster.gpus_per_node,
        cpus_per_node=cpus,
        tmp_root=cluster.tmp_root,
        python=python,
        host_python=facts.python,
        setup=tuple(cluster.setup),
        env={item.name: item.value for item in variables},
        env_reasons={item.name: item.reason for item in variables},
        secret_names=secret_names(config),
        signs_copies=config.checkpoint.upload_url is not None,
        copies_to=config.checkpoint.upload_url,
        preflight=build_preflight(config),
        driver_argv=build_driver_argv(config.task, python, run_dir),
        actors=actors,
        weight_transfer=choose_transfer(config, actors)[0],
        layout=layout,
        ray=RayPlan(int(config.ray.object_store_gb * 1e9), config.ray.dashboard, config.ray.dashboard_port),
        limits=_limits(config),
        container=config.container.model_dump(mode="json"),
        sbatch=sbatch,
        het=tuple(het),
        num_spare_nodes=config.job.num_spare_nodes if launcher.is_queue else 0,
        node_groups=list_groups(config),
        torchrun=_torchrun(config, actors),
        external=_external(config, run_dir),
        expected=expected_for(config, cluster.accelerator),
        address=cluster.address,
        after=config.job.depends_on,
    )


def _lay_out(config: RunConfig, facts: SubmitFacts, cpus: int | None) -> tuple[tuple[ActorPlan, ...], LayoutPlan]:
    """Place the processes and choose their sizes."""
    # An external program has its own model and placement.
    shape = None if config.external else facts.model_shape
    check_context(config, shape)
    check_heads(config, shape)
    tensor_parallel_size = choose_tensor_parallel_size(config, shape)
    actors = place_actors(config, cpus, tensor_parallel_size)
    layout = build_layout(config, shape, facts.reference_shape, actors, tensor_parallel_size)
    return actors, replace(layout, service=fit_services(config, actors, facts.reward_shape))


def _limits(config: RunConfig) -> LimitsPlan:
    job = config.job
    return LimitsPlan(
        job.time_limit_min,
        job.planned_lead_s,
        job.max_failures,
        job.start_timeout_s,
        job.heartbeat_timeout_s,
        config.trainer.step_timeout_s,
        learns_lead=job.checkpoint_lead_s == "auto" and config.external is None,
    )


def _choose_python(config: RunConfig, facts: SubmitFacts) -> str:
    # An image or another cluster has its own interpreter.
    elsewhere = (
        "python" if LAUNCHERS[config.cluster.launcher].existing else "python3" if config.container.image else None
    )
    return config.cluster.python or elsewhere or facts.python


def _external(config: RunConfig, run_dir: str) -> ExternalPlan | None:
    if config.external is None:
        return None
    from slurm_rl.plugins.external.argv import RunValues, build_external_argv

    run = RunValues(
        nodes=config.cluster.num_nodes,
        gpus_per_node=config.cluster.gpus_per_node,
        checkpoints=f"{run_dir}/checkpoints",
        export=f"{run_dir}/export",
    )
    first, later = (build_external_argv(config.external, run, resume=resume) for resume in (False, True))
    return ExternalPlan(first, later, config.external.layout)


def _torchrun(config: RunConfig, actors: tuple[ActorPlan, ...]) -> TorchrunPlan | None:
    if not config.under_torchrun:
        return None
    if config.external is not None:
        return TorchrunPlan(config.external.ranks_per_node or max(1, config.cluster.gpus_per_node), None)
    return TorchrunPlan(sum(actor.node == 0 for actor in actors), actors[0].num_threads)
