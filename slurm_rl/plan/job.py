"""JobPlan: the result of planning a config, stored as plan.json in the run directory.

The node agent reads plan.json with the standard library only.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from slurm_rl.config.launchers import LAUNCHERS, LauncherEntry
from slurm_rl.errors import RunDirError
from slurm_rl.plan.node_groups import NodeGroup, group_of
from slurm_rl.plan.preflight import PreflightPlan
from slurm_rl.plan.task import ExternalPlan, TorchrunPlan

if TYPE_CHECKING:  # the node agent has no pydantic
    from slurm_rl.config.run import RunConfig
    from slurm_rl.plan.accelerator import AcceleratorKind
    from slurm_rl.plan.memory import EngineMemory, ServiceMemory
    from slurm_rl.plan.policy_memory import PolicyMemory
    from slurm_rl.plan.step_times import StepEstimate

PLAN_VERSION = 5
HOSTS_VARIABLE = "SLURM_RL_HOSTS"
"""Comma-separated host names by rank; the controller sets it, since a container has no scontrol."""
NODE_VARIABLE = "SLURMD_NODENAME"
"""Slurm's name of a task's node, which may differ from the host name."""


@dataclass(frozen=True)
class ActorPlan:
    """One process of the trainer: its role, node and GPUs."""

    role: str
    """`policy` or `critic` (one data-parallel rank), `rollout` (one vLLM engine), `reference` (one frozen copy),
    `reward` (one reward service, or server of a judge)."""
    index: int
    """Rank within the role."""
    node: int
    """Rank of its node."""
    gpus: tuple[int, ...]
    """Indices of its GPUs on the node; empty on CPU."""
    num_threads: int | None
    """CPU threads; None: the library's default."""


@dataclass(frozen=True)
class LayoutPlan:
    """Chosen sizes and memory estimates; estimates are None if model shape or GPU memory is unknown."""

    tensor_parallel_size: int
    micro_batch_tokens: int
    gradient_checkpointing: bool
    logprob_chunk_tokens: int | None
    gpu_memory_utilization: float | None = None
    """Share of a GPU that vLLM may use."""
    gpu_mem_gb: float | None = None
    engine_budget_gb: float | None = None
    """Part of it that vLLM may use."""
    policy: PolicyMemory | None = None
    engine: EngineMemory | None = None
    critic: PolicyMemory | None = None
    """Worker of a dedicated critic."""
    reference: PolicyMemory | None = None
    """Worker of a dedicated reference."""
    service: ServiceMemory | None = None
    """Reward service with its own GPU."""
    judge: EngineMemory | None = None
    """A judge's server."""
    judge_budget_gb: float | None = None
    """Memory of its GPU that vLLM may use."""
    capacities_gb: dict[str, float] = field(default_factory=dict)
    """Memory of the smallest GPU of each role, if known."""
    unknown: str | None = None
    """Missing information for an estimate, and how to provide it."""
    host_gb: dict[str, float] = field(default_factory=dict)
    """Host memory by phase of the node with the most."""
    colocate: bool = False
    """rollout.colocate with auto resolved."""
    offload: str = "none"
    """policy.offload with auto resolved."""
    context_parallel: int = 1
    """policy.context_parallel with auto resolved."""
    step: StepEstimate | None = None
    """Estimated time of a step."""
    sizes_why: str = ""
    """Why these sizes of the trainer were chosen."""
    split_why: str = ""
    """Why the engines of a synchronous loop have GPUs of their own, if the config leaves it open."""
    next_best: tuple[str, ...] = ()
    """The next best layouts, and why they lost."""

    def fill_in(self, config: RunConfig) -> RunConfig:
        """Return the config with these sizes."""
        again, chunk = self.gradient_checkpointing, self.logprob_chunk_tokens
        sizes = {"micro_batch_tokens": self.micro_batch_tokens, "logprob_chunk_tokens": chunk, "offload": self.offload}
        sizes["context_parallel"] = self.context_parallel
        share = self.gpu_memory_utilization or config.rollout.gpu_memory_utilization
        rollout = {"gpu_memory_utilization": share, "colocate": self.colocate}
        return config.with_values(model={"gradient_checkpointing": again}, policy=sizes, rollout=rollout)

    @staticmethod
    def from_json(tree: dict[str, Any]) -> LayoutPlan:
        from slurm_rl.plan.memory import EngineMemory, ServiceMemory
        from slurm_rl.plan.policy_memory import PolicyMemory
        from slurm_rl.plan.step_times import StepEstimate

        roles = ("policy", "critic", "reference")
        types: dict[str, type] = dict.fromkeys(roles, PolicyMemory)
        types |= {"engine": EngineMemory, "judge": EngineMemory, "service": ServiceMemory, "step": StepEstimate}
        found = {name: cls(**tree[name]) for name, cls in types.items() if tree.get(name)}
        return LayoutPlan(**{**tree, **found, "next_best": tuple(tree.get("next_best", ()))})


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
    evaluates_checkpoints: bool = False
    """Submit an evaluation job per checkpoint."""

    @property
    def launcher_entry(self) -> LauncherEntry:
        return LAUNCHERS[self.launcher]

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
            "preflight": PreflightPlan(**tree.get("preflight", {})),
            "torchrun": TorchrunPlan(**torchrun) if torchrun else None,
            "external": _read_external(external) if external else None,
        }
        return JobPlan(**{**tree, **lists, **sections})


def _read_external(tree: dict[str, Any]) -> ExternalPlan:
    commands = {name: tuple(tree.get(name, ())) for name in ("first", "later", "before_limit")}
    return ExternalPlan(**{**tree, **commands})
