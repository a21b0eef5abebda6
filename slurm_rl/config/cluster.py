"""Config of the machines: launcher, nodes, GPUs and the options of sbatch."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, StrictBool, StrictInt

from slurm_rl.config.launchers import LAUNCHERS, LauncherEntry
from slurm_rl.config.section import NonNegativeInt, PositiveFloat, PositiveInt, Section, checked_by, one_of
from slurm_rl.config.text import NodeGroupName, OneLine, Text, VariableName

# Options that the controller, `status` and `resume` rely on, with the next action.
RESERVED_OPTIONS = {
    "array": "sweep with -m",
    "container": "use the container section",
    "container-image": "use the container section",
    "cpus-per-task": "set cluster.cpus_per_node",
    "error": "leave it out: logs are in the run directory",
    "exclusive": "set cluster.slurm.exclusive",
    "help": "leave it out",
    "job-name": "set name",
    "mem": "set cluster.mem_gb_per_node",
    "nodes": "set cluster.num_nodes",
    "no-requeue": "leave it out: a run that reaches the time limit is requeued",
    "ntasks": "leave it out: there is one task per node",
    "ntasks-per-node": "leave it out: there is one task per node",
    "open-mode": "leave it out",
    "output": "leave it out: logs are in the run directory",
    "parsable": "leave it out",
    "segment": "set cluster.topology.segment",
    "signal": "set job.checkpoint_lead_s",
    "switches": "set cluster.topology.switches",
    "test-only": "use `python -m slurm_rl plan`",
    "time": "set job.time_limit",
    "usage": "leave it out",
    "version": "leave it out",
    "wait": "follow with `python -m slurm_rl logs -f`",
    "wrap": "leave it out",
}


def _check_extra(options: dict[str, bool | int | str]) -> None:
    for name in options:
        option = name.replace("_", "-")
        if not re.fullmatch(r"[a-z][a-z0-9-]+", option):
            raise ValueError(f"an sbatch option must be its long name without leading dashes; got {name!r}")
        if option in RESERVED_OPTIONS:
            raise ValueError(
                f"an option in extra must not be one that slurm_rl sets; got {name!r}. Next: {RESERVED_OPTIONS[option]}"
            )
        if name.replace("-", "_") in SlurmOptions.model_fields:
            raise ValueError(
                f"this option has its own key; got {name!r}. Next: set cluster.slurm.{name.replace('-', '_')}"
            )


class SlurmOptions(Section):
    """Options of sbatch by their own names; other options go into `extra`."""

    partition: OneLine | None = None
    """--partition."""
    account: OneLine | None = None
    """--account."""
    qos: OneLine | None = None
    """--qos."""
    constraint: OneLine | None = None
    """--constraint."""
    reservation: OneLine | None = None
    """--reservation."""
    nodelist: OneLine | None = None
    """--nodelist."""
    exclude: OneLine | None = None
    """--exclude."""
    dependency: OneLine | None = None
    """--dependency."""
    mail_type: OneLine | None = None
    """--mail-type."""
    mail_user: OneLine | None = None
    """--mail-user."""
    comment: OneLine | None = None
    """--comment."""
    nice: int | None = None
    """--nice."""
    gres: OneLine | None = None
    """--gres; null: gpu:<type>:<n> from cluster.gpu_type and gpus_per_node, unless `extra` requests GPUs."""
    exclusive: bool = True
    """--exclusive: no other job runs on the nodes."""
    extra: Annotated[dict[str, StrictBool | StrictInt | OneLine], checked_by(_check_extra)] = Field(default={})
    """Other options of sbatch by their long names without leading dashes; true for a flag."""


class NodeGroupConfig(Section):
    """One group of equal nodes in a heterogeneous job; null inherits the value of `cluster`."""

    count: PositiveInt = 1
    """Nodes of the group."""
    gpus_per_node: NonNegativeInt | None = None
    """GPUs per node; 0: CPU nodes."""
    gpu_type: OneLine | None = None
    """Slurm's name of the GPU type."""
    gpu_mem_gb: PositiveFloat | None = None
    """Memory of one GPU in GB (10^9 bytes), for the memory estimate."""
    cpus_per_node: PositiveInt | None = None
    """CPU cores per node."""
    mem_gb_per_node: PositiveInt | Literal["all"] | None = None
    """Memory per node in Slurm's GB, or all."""
    partition: OneLine | None = None
    """--partition of the group."""
    constraint: OneLine | None = None
    """--constraint of the group; null: the group's name, a Slurm feature, unless GPU type or partition select the
    nodes."""

    @property
    def is_selected(self) -> bool:
        """Whether GPU type or partition select these nodes, so that no feature is needed."""
        return self.gpu_type is not None or self.partition is not None


class TopologyConfig(Section):
    """Network distance between the nodes of a job."""

    segment: PositiveInt | None = None
    """--segment: nodes are allocated in groups of this size within one block (Slurm 24.05 and later,
    topology/block)."""
    switches: Annotated[OneLine, Field(pattern=r"^[1-9]\d*(@[0-9:-]+)?$")] | None = None
    """--switches: leaf switches at most, and the time to wait for them: 1@10:00 (topology/tree)."""


class ClusterConfig(Section):
    """Machines of the run."""

    launcher: Annotated[str, one_of(LAUNCHERS)] = "local"
    """local: processes on this machine; slurm: a Slurm job; ray: a job on an existing Ray cluster; manual:
    `python -m slurm_rl join` started on each machine."""
    address: OneLine | None = None
    """Dashboard URL of the Ray cluster with launcher=ray, http://host:8265; RAY_AUTH_TOKEN holds its token."""
    remote_root: OneLine | None = None
    """Folder for trainer output with launcher=ray, seen by all nodes of that cluster; null: the path of the local run
    directory, which those nodes must then see."""
    head_port: Annotated[int, Field(ge=1, le=65535)] = 10190
    """Port of node 0 with launcher=manual, below the ports that runs allocate."""
    accelerator: Literal["cpu", "nvidia", "amd"] = "cpu"
    """Accelerator of the nodes, which determines device masks, environment variables and expected libraries. Not set,
    and with launcher=local: the GPUs of this machine, else cpu."""
    gpu_type: OneLine | None = None
    """Slurm's name of the GPU type, for --gres and the check at submission."""
    num_nodes: PositiveInt = 1
    """Nodes of the run, which does not start with fewer."""
    nodes: dict[NodeGroupName, NodeGroupConfig] = Field(default={})
    """Node groups of a heterogeneous job, by name: +cluster.nodes.h100.count=2; `node_group` of policy, rollout,
    reference, critic, reward.service and reward.judge.server selects one. Empty: all nodes are equal."""
    topology: TopologyConfig = TopologyConfig()
    """Network distance between nodes."""
    gpus_per_node: NonNegativeInt = 0
    """GPUs per node. Not set, and with launcher=local: those of this machine, less the ones that CUDA_VISIBLE_DEVICES
    or ROCR_VISIBLE_DEVICES hide."""
    gpu_mem_gb: PositiveFloat | None = None
    """Memory of one GPU in GB (10^9 bytes), for the memory estimate; null: no estimate, except for detected GPUs."""
    detected: Text | None = None
    """Origin of accelerator and GPUs that neither a preset nor an override sets, such as `nvidia-smi on this machine:
    1 x NVIDIA H100`; filled in at submission."""
    cpus_per_node: PositiveInt | None = None
    """CPU cores per node; null: all cores of this machine (local), or Slurm's default (slurm)."""
    mem_gb_per_node: PositiveInt | Literal["all"] | None = "all"
    """Memory per node in Slurm's GB; all: --mem=0; null: no --mem, so Slurm's default or slurm.extra applies."""
    max_parallel_runs: PositiveInt | None = None
    """Concurrent runs of a sweep at most; null: no limit."""
    run_root: OneLine = "runs"
    """Folder for run directories; every node must see it."""
    site_dir: OneLine | None = None
    """Folder in which all runs of the site share their records of bad nodes; null: each run keeps its own."""
    tmp_root: OneLine = "/tmp"
    """Node-local folder for sockets and spilling, mounted into containers; keep it short, since the path of a Unix
    socket is limited to 107 bytes."""
    python: OneLine | None = None
    """Python interpreter of the trainer on the nodes, such as /shared/venv/bin/python; null: the running one, or
    python3 in a container."""
    network_interface: OneLine | None = None
    """Network interface of NCCL, RCCL and Gloo; null: chosen by them."""
    internet: bool = True
    """Whether the nodes reach the internet. false: models, tokenizers and data must be local files (`prepare`, or the
    hub's cache), and the job sets HF_HUB_OFFLINE=1."""
    setup: list[Text] = Field(default=[])
    """Shell lines on the host of each node before any process starts, such as module load; a failing line ends the
    attempt. They do not select the Python (see cluster.python). With pyxis they run only in the batch script, whose
    exports reach all nodes; container.setup is for the container."""
    env: dict[VariableName, Text | None] = Field(default={})
    """Environment variables of all processes of the run; null removes a preset variable."""
    slurm: SlurmOptions = SlurmOptions()
    """Options of sbatch."""

    @property
    def launcher_entry(self) -> LauncherEntry:
        return LAUNCHERS[self.launcher]

    def gpus_of(self, group: str) -> int:
        """Return the GPUs per node of a node group."""
        number = self.nodes[group].gpus_per_node
        return self.gpus_per_node if number is None else number

    def problems(self) -> Iterator[str]:
        yield from self._address_problems()
        yield from self._group_problems()

    def _group_problems(self) -> Iterator[str]:
        if not self.nodes:
            return
        total = sum(group.count for group in self.nodes.values())
        if total != self.num_nodes:
            yield (
                f"the counts in cluster.nodes must add up to cluster.num_nodes; got {total} and "
                f"{self.num_nodes}. Next: set cluster.num_nodes={total}"
            )
        taken = {"constraint": self.slurm.constraint, "nodelist": self.slurm.nodelist, "gres": self.slurm.gres}
        taken |= {f"extra.{name}": str(value) for name, value in self.slurm.extra.items() if name.startswith("gpus")}
        for name, value in taken.items():
            if value:
                yield (
                    f"with cluster.nodes each group has its own options; got cluster.slurm.{name}={value!r} as well. "
                    "Next: leave it out"
                )
        for name, group in self.nodes.items():
            if group.gpus_per_node and self.accelerator == "cpu":
                yield f"cluster.nodes.{name}.gpus_per_node must be 0 on accelerator 'cpu'; got {group.gpus_per_node}"

    def _address_problems(self) -> Iterator[str]:
        if self.launcher_entry.existing != (self.address is not None):
            yield (
                f"cluster.address and cluster.launcher=ray go together; got {self.address!r} and {self.launcher!r}. "
                "Next: +cluster=ray cluster.address=http://host:8265"
            )
        if self.address is not None and not is_dashboard_url(self.address):
            yield (
                "cluster.address is the URL of a Ray dashboard, http://host:8265 or https://...; "
                f"got {hide_password(self.address)!r}. Next: name the dashboard, not the GCS (port 6379) nor ray://"
            )
        if self.remote_root is not None and not self.remote_root.startswith("/"):
            yield (
                "cluster.remote_root is an absolute path that every node of that cluster sees (NFS, a mounted bucket); "
                f"got {self.remote_root!r}. Next: name such a path, and checkpoint.upload_url=gs://... for "
                f"checkpoints in a "
                "bucket"
            )


def is_dashboard_url(address: str) -> bool:
    """Return whether it is an http(s) URL with a host and no password or query.

    >>> is_dashboard_url("http://head:8265"), is_dashboard_url("ray://head:10001"), is_dashboard_url("head:6379")
    (True, False, False)
    """
    try:
        parts = urlsplit(address)
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    plain = not (parts.username or parts.password or parts.query or parts.fragment) and " " not in address
    return parts.scheme in ("http", "https") and has_host and plain


def hide_password(address: str) -> str:
    """Return the address without user and password.

    >>> hide_password("https://me:secret@host/x")
    'https://...@host/x'
    """
    scheme, found, rest = address.partition("://")
    return f"{scheme}://...@{rest.rpartition('@')[2]}" if found and "@" in rest else address
