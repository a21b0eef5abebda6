"""Where a run goes: this machine or a Slurm cluster, and what its nodes have."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slurm_rl.config.base import NonNegativeInt, PositiveInt, Section


class SlurmOptions(Section):
    """Options of sbatch under their own names; anything else goes in `extra`."""

    partition: str | None = None
    """--partition."""
    account: str | None = None
    """--account."""
    qos: str | None = None
    """--qos."""
    constraint: str | None = None
    """--constraint."""
    reservation: str | None = None
    """--reservation."""
    nodelist: str | None = None
    """--nodelist."""
    exclude: str | None = None
    """--exclude."""
    dependency: str | None = None
    """--dependency."""
    mail_type: str | None = None
    """--mail-type."""
    mail_user: str | None = None
    """--mail-user."""
    comment: str | None = None
    """--comment."""
    nice: int | None = None
    """--nice."""
    gres: str | None = None
    """--gres; null derives gpu:<type>:<n> from the cluster."""
    exclusive: bool = True
    """--exclusive: the job has its nodes for itself."""
    extra: dict[str, str | int | bool] = Field(default={})
    """Any other option of sbatch, long name without dashes; true for a flag."""


class ClusterConfig(Section):
    """The machines."""

    launcher: Literal["local", "slurm"] = "local"
    """local: a process on this machine; slurm: a job."""
    accelerator: Literal["cpu", "nvidia", "amd"] = "cpu"
    """Which accelerator tables apply."""
    gpu_type: str | None = None
    """Slurm's name of the GPU type, for gres and for the submit-time check."""
    num_nodes: PositiveInt = 1
    """Nodes of the job; the run has exactly these or does not start."""
    gpus_per_node: NonNegativeInt = 0
    """GPUs taken on each node."""
    cpus_per_node: PositiveInt | None = None
    """CPU cores taken on each node; null: all of this machine (local), Slurm's default (slurm)."""
    mem_gb_per_node: PositiveInt | None = None
    """Memory taken on each node; null: all of it."""
    run_root: str = "runs"
    """Folder for run directories; every node must see it."""
    tmp_root: str = "/tmp"
    """Node-local folder for sockets and spills; short, since a Unix socket's path holds 107 bytes."""
    python: str | None = None
    """Python on the nodes (inside the container, when there is one); null: the one running now."""
    network_interface: str | None = None
    """Interface for NCCL, RCCL and Gloo; null lets them choose."""
    setup: list[str] = Field(default=[])
    """Shell lines before anything starts on each node: module load, source activate."""
    env: dict[str, str | None] = Field(default={})
    """Environment of every process of the run; null removes a variable the presets set."""
    slurm: SlurmOptions = SlurmOptions()
    """Options for sbatch."""
