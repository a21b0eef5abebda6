"""JobPlan: everything computed from the config, as plain data that any Python can read.

`build_plan` is pure: no subprocess, no clock, no environment. What it must know of the machine it
runs on comes in as `SubmitFacts`. `plan.json` in the run directory is this object, and the node
agent reads it with the standard library alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from slurm_rl.config.launchers import LAUNCHERS
from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import RunDirError
from slurm_rl.plan.accelerator import AcceleratorKind
from slurm_rl.plan.demand import place_actors
from slurm_rl.plan.expected import expected_for
from slurm_rl.plan.kinds import NodeKind, kind_of, list_kinds
from slurm_rl.plan.layout import LayoutPlan, build_layout, check_context, check_heads, choose_tensor_parallel_size
from slurm_rl.plan.memory import ModelShape
from slurm_rl.plan.preflight import PreflightPlan, build_preflight
from slurm_rl.plan.services import fit_services
from slurm_rl.plan.task import ExternalPlan, TorchrunPlan, build_driver_argv, secret_names
from slurm_rl.plan.topology import ActorPlan
from slurm_rl.plan.transfer import choose_transfer
from slurm_rl.plan.variables import list_variables

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig

PLAN_VERSION = 4
HOSTS_VARIABLE = "SLURM_RL_HOSTS"
"""Host names of all nodes, by rank, with commas; the controller sets it, since a container has no scontrol."""
NODE_VARIABLE = "SLURMD_NODENAME"
"""Slurm's own name of the node around a task: not always the host name, and srun numbers tasks in its own order."""


@dataclass(frozen=True)
class SubmitFacts:
    """What the plan must know of the submitting machine."""

    python: str
    """The running interpreter."""
    num_cpus: int
    """Cores this process may use; Slurm's nodes have others."""
    version: str
    """slurm_rl.__version__."""
    model_shape: ModelShape | None = None
    """From the model's config.json, where this machine can see it."""
    reward_shape: ModelShape | None = None
    """The same of reward.model.path."""
    reference_shape: ModelShape | None = None
    """The same of reference.path."""


@dataclass(frozen=True)
class RayPlan:
    """The Ray cluster of one attempt."""

    object_store_bytes: int
    dashboard: bool
    dashboard_port: int | None = None
    """None: that of the job's block of ports."""


@dataclass(frozen=True)
class LimitsPlan:
    """Deadlines and restarts."""

    time_limit_min: int | None
    signal_lead_s: int
    max_failures: int
    start_timeout_s: float
    hang_after_s: float = 300.0
    step_timeout_s: float = 3600.0
    learns_lead: bool = False
    """job.signal_lead_s is auto: the lead grows with what saves take."""


@dataclass(frozen=True)
class JobPlan:
    """One job, ready to be submitted any number of times."""

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
    """On the nodes; inside the container, when there is one."""
    host_python: str
    """Of the controller, outside any container."""
    setup: tuple[str, ...]
    env: dict[str, str]
    """Environment of every process of the run."""
    env_reasons: dict[str, str]
    """Why each variable is set, for `plan` to print."""
    secret_names: tuple[str, ...]
    driver_argv: tuple[str, ...]
    actors: tuple[ActorPlan, ...]
    layout: LayoutPlan
    ray: RayPlan
    limits: LimitsPlan
    container: dict[str, Any]
    sbatch: dict[str, str | int | bool]
    """Options of sbatch by long name, of the first component; empty for the other launchers."""
    num_spare_nodes: int = 0
    """Nodes of the allocation beyond num_nodes."""
    kinds: tuple[NodeKind, ...] = ()
    """Of the nodes, in the order of ranks; empty where all are alike."""
    het: tuple[dict[str, str | int | bool], ...] = ()
    """Options of sbatch of the components after the first, where each kind of nodes is one."""
    torchrun: TorchrunPlan | None = None
    """Set for tasks whose ranks torchrun starts; None: a Ray cluster, and the driver on its head node."""
    external: ExternalPlan | None = None
    """Set for tasks that run somebody else's trainer."""
    expected: dict[str, str] = field(default_factory=dict)
    """What must be where the trainer runs; see plan/expected.py."""
    address: str | None = None
    """Dashboard of the Ray cluster that the run goes to; None where it brings up its own."""
    weight_transfer: str = "ray"
    """How new weights reach the engines: rollout.weight_transfer, with auto decided; see plan/transfer.py."""
    signs_copies: bool = False
    """Checkpoints are copied to a URL, signed with a key of the run."""
    copies_to: str | None = None
    """That URL, for logs and export at the end of an attempt."""
    preflight: PreflightPlan = field(default_factory=PreflightPlan)
    """What the nodes are asked before an attempt."""
    after: str | None = None
    """Directory of the run that must have finished before this one starts."""

    def gpus_on(self, rank: int) -> int:
        """GPUs that the run has on the node with this rank."""
        return kind_of(self.kinds, rank).gpus_per_node if self.kinds else self.gpus_per_node

    def cpus_on(self, rank: int) -> int | None:
        """Cores of that node; None where Slurm decides."""
        return kind_of(self.kinds, rank).cpus_per_node if self.kinds else self.cpus_per_node

    @property
    def gpus_by_node(self) -> list[int]:
        return [self.gpus_on(rank) for rank in range(self.num_nodes)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(tree: dict[str, Any]) -> JobPlan:
        """Rebuild a plan; RunDirError when another version of slurm_rl wrote it."""
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
            "kinds": tuple(NodeKind(**kind) for kind in tree.get("kinds", ())),
            "ray": RayPlan(**tree["ray"]),
            "limits": LimitsPlan(**tree["limits"]),
            "preflight": PreflightPlan.from_json(tree.get("preflight", {})),
            "torchrun": TorchrunPlan(**torchrun) if torchrun else None,
            "external": _read_external(external) if external else None,
        }
        # Of versions that knew a feature of each node alone; such a job chooses its nodes by its own copy of the code.
        known = {name: value for name, value in tree.items() if name != "node_features"}
        return JobPlan(**{**known, **lists, **sections})


def _read_external(tree: dict[str, Any]) -> ExternalPlan:
    return ExternalPlan(**{**tree, "first": tuple(tree["first"]), "later": tuple(tree["later"])})


def build_plan(config: RunConfig, run_dir: str, facts: SubmitFacts) -> JobPlan:
    """Derive the plan of a run.

    Args:
        config: what the user said.
        run_dir: absolute path of the run directory.
        facts: what is known of the submitting machine.

    Raises:
        ConfigError: the layout is impossible; the message holds both numbers.
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
        signs_copies=config.checkpoint.url is not None,
        copies_to=config.checkpoint.url,
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
        kinds=list_kinds(config),
        torchrun=_torchrun(config, actors),
        external=_external(config, run_dir),
        expected=expected_for(config, cluster.accelerator),
        address=cluster.address,
        after=config.job.after,
    )


def _lay_out(config: RunConfig, facts: SubmitFacts, cpus: int | None) -> tuple[tuple[ActorPlan, ...], LayoutPlan]:
    """Where the processes stand, and what they hold."""
    # What an external program places, and with which model, is its own affair.
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
        job.hang_after_s,
        config.trainer.step_timeout_s,
        learns_lead=job.signal_lead_s == "auto" and config.external is None,
    )


def _choose_python(config: RunConfig, facts: SubmitFacts) -> str:
    # The host's environment is not in the image.
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
