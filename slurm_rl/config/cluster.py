"""Where a run goes: this machine or a Slurm cluster, and what its nodes have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, StrictBool, StrictInt

from slurm_rl.config.launchers import LAUNCHERS
from slurm_rl.config.nodes import NodeKindConfig, TopologyConfig
from slurm_rl.config.section import NonNegativeInt, PositiveFloat, PositiveInt, Section, checked_by, one_of
from slurm_rl.config.text import Feature, OneLine, Text, VariableName

# The controller, `status` and `resume` rest on these; each has another way to be said, or none.
RESERVED_OPTIONS = {
    "array": "sweep with -m",
    "container": "use the container section",
    "container-image": "use the container section",
    "cpus-per-task": "set cluster.cpus_per_node",
    "error": "leave it out: logs lie in the run directory",
    "exclusive": "set cluster.slurm.exclusive",
    "help": "leave it out",
    "job-name": "set name",
    "mem": "set cluster.mem_gb_per_node",
    "nodes": "set cluster.num_nodes",
    "no-requeue": "leave it out: a run that the time limit ends comes back by requeue",
    "ntasks": "leave it out: there is one task a node",
    "ntasks-per-node": "leave it out: there is one task a node",
    "open-mode": "leave it out",
    "output": "leave it out: logs lie in the run directory",
    "parsable": "leave it out",
    "segment": "set cluster.topology.segment",
    "signal": "set job.signal_lead_s",
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
            raise ValueError(f"an option of sbatch is its long name, without leading dashes; got {name!r}")
        if option in RESERVED_OPTIONS:
            raise ValueError(
                f"an option in extra must not be one that slurm_rl sets; got {name!r}. Next: {RESERVED_OPTIONS[option]}"
            )
        if name.replace("-", "_") in SlurmOptions.model_fields:
            raise ValueError(
                f"this option has a key of its own; got {name!r}. Next: set cluster.slurm.{name.replace('-', '_')}"
            )


class SlurmOptions(Section):
    """Options of sbatch under their own names; anything else goes in `extra`."""

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
    """--gres; null derives gpu:<type>:<n> from the cluster, unless `extra` has gpus or gpus_per_node."""
    exclusive: bool = True
    """--exclusive: the job has its nodes for itself."""
    extra: Annotated[dict[str, StrictBool | StrictInt | OneLine], checked_by(_check_extra)] = Field(default={})
    """Any other option of sbatch, long name without leading dashes; true for a flag."""


class ClusterConfig(Section):
    """The machines."""

    launcher: Annotated[str, one_of(LAUNCHERS)] = "local"
    """local: a process on this machine; slurm: a job; ray: a job of a Ray cluster that is there already;
    machines: `python -m slurm_rl node` on each of them."""
    address: OneLine | None = None
    """Of launcher ray: the cluster's dashboard, http://host:8265; its token comes from RAY_AUTH_TOKEN."""
    remote_root: OneLine | None = None
    """Of launcher ray: folder that every node of that cluster sees, for what the trainer writes; null: the path of the
    run directory here, which those nodes must see then."""
    head_port: Annotated[int, Field(ge=1, le=65535)] = 10190
    """Of launcher machines: where the others find node 0. Below the ports that runs choose for themselves."""
    accelerator: Literal["cpu", "nvidia", "amd"] = "cpu"
    """What the nodes compute with; masks, environment and expected libraries follow from it."""
    gpu_type: OneLine | None = None
    """Slurm's name of the GPU type, for gres and for the submit-time check."""
    num_nodes: PositiveInt = 1
    """Nodes of the job; the run has exactly these or does not start."""
    nodes: dict[Feature, NodeKindConfig] = Field(default={})
    """Nodes of several kinds, by names of your own: +cluster.nodes.h100.count=2. The keys `node_feature` of policy,
    rollout, reference, critic and reward.service choose among them. Empty: all nodes are alike."""
    topology: TopologyConfig = TopologyConfig()
    """How close to each other the nodes are."""
    gpus_per_node: NonNegativeInt = 0
    """GPUs taken on each node."""
    gpu_mem_gb: PositiveFloat | None = None
    """Memory of one GPU in GB (10^9 bytes), for the estimate of what fits; null: nothing is estimated."""
    cpus_per_node: PositiveInt | None = None
    """CPU cores taken on each node; null: all of this machine (local), Slurm's default (slurm)."""
    mem_gb_per_node: PositiveInt | Literal["all"] | None = "all"
    """Memory of each node for the job, in GB as Slurm counts them; all: all of it (--mem=0); null: no --mem, so that
    Slurm's default or an option in slurm.extra holds."""
    max_parallel_runs: PositiveInt | None = None
    """Runs of a sweep that may run at once; null leaves it to Slurm."""
    run_root: OneLine = "runs"
    """Folder for run directories; every node must see it."""
    site_dir: OneLine | None = None
    """Folder that all runs of the site see and write to, where they tell each other of bad nodes; null: each run
    remembers its own alone."""
    tmp_root: OneLine = "/tmp"
    """Node-local folder for sockets and spills, mounted into containers; short, since a Unix socket's path holds 107
    bytes."""
    python: OneLine | None = None
    """Python of the trainer on the nodes, /shared/venv/bin/python; null: the one running now, or in a container
    python3."""
    network_interface: OneLine | None = None
    """Interface for NCCL, RCCL and Gloo; null lets them choose."""
    setup: list[Text] = Field(default=[])
    """Shell lines on the host of each node before anything starts there, such as module load; one that fails ends the
    attempt. They do not change the Python that runs: see cluster.python. With pyxis, which starts no shell on the
    nodes, in the batch script alone: what they export arrives everywhere. container.setup is for the container."""
    env: dict[VariableName, Text | None] = Field(default={})
    """Environment of every process of the run; null removes a variable the presets set."""
    slurm: SlurmOptions = SlurmOptions()
    """Options for sbatch."""

    def gpus_of(self, kind: str) -> int:
        """GPUs taken on a node of this kind."""
        number = self.nodes[kind].gpus_per_node
        return self.gpus_per_node if number is None else number

    def problems(self) -> Iterator[str]:
        yield from self._address_problems()
        yield from self._kind_problems()
        yield from self._topology_problems()

    def _kind_problems(self) -> Iterator[str]:
        if not self.nodes:
            return
        total = sum(kind.count for kind in self.nodes.values())
        if total != self.num_nodes:
            yield (
                f"the counts in cluster.nodes must add up to cluster.num_nodes; got {total} and "
                f"{self.num_nodes}. Next: set cluster.num_nodes={total}"
            )
        if not LAUNCHERS[self.launcher].is_queue:
            yield f"cluster.nodes needs cluster.launcher=slurm, which has kinds of nodes; got {self.launcher}"
        taken = {"constraint": self.slurm.constraint, "nodelist": self.slurm.nodelist, "gres": self.slurm.gres}
        taken |= {f"extra.{name}": str(value) for name, value in self.slurm.extra.items() if name.startswith("gpus")}
        for name, value in taken.items():
            if value:
                yield (
                    f"with cluster.nodes each kind has options of its own; got cluster.slurm.{name}={value!r} as well. "
                    "Next: leave it out"
                )
        for name, kind in self.nodes.items():
            if kind.gpus_per_node and self.accelerator == "cpu":
                yield f"cluster.nodes.{name}.gpus_per_node must be 0 on accelerator 'cpu'; got {kind.gpus_per_node}"

    def _topology_problems(self) -> Iterator[str]:
        if self.topology != TopologyConfig() and not LAUNCHERS[self.launcher].is_queue:
            yield f"cluster.topology needs cluster.launcher=slurm, which knows its switches; got {self.launcher}"

    def _address_problems(self) -> Iterator[str]:
        is_existing = LAUNCHERS[self.launcher].existing
        if is_existing != (self.address is not None):
            yield (
                f"cluster.address and cluster.launcher=ray go together; got {self.address!r} and {self.launcher!r}. "
                "Next: +cluster=ray cluster.address=http://host:8265"
            )
        if self.remote_root is not None and not is_existing:
            yield f"cluster.remote_root is for cluster.launcher=ray; got it with {self.launcher!r}"
        if self.address is not None and not is_dashboard_url(self.address):
            yield (
                "cluster.address is the URL of a Ray dashboard, http://host:8265 or https://...; "
                f"got {hide_password(self.address)!r}. Next: name the dashboard, not the GCS (port 6379) nor ray://"
            )
        if self.remote_root is not None and not self.remote_root.startswith("/"):
            yield (
                "cluster.remote_root is an absolute path that every node of that cluster sees (NFS, a mounted bucket); "
                f"got {self.remote_root!r}. Next: name such a path, and checkpoint.url=gs://... for checkpoints in a "
                "bucket"
            )


def is_dashboard_url(address: str) -> bool:
    """Scheme, host, perhaps a port and a path; no password, no query.

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
    """The address without who asks.

    >>> hide_password("https://me:secret@host/x")
    'https://...@host/x'
    """
    scheme, found, rest = address.partition("://")
    return f"{scheme}://...@{rest.rpartition('@')[2]}" if found and "@" in rest else address
