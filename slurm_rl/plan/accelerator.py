"""Environment variables of a run, each with its reason.

The variables are rows of accelerator.csv. `when` selects a row for an accelerator (torch.distributed and RCCL also read
NCCL's names), for Ray (`ray`, and `burst` on many nodes), in containers (`container-all`, `container-gpu`), without
internet (`offline`), or with job.debug=true (`debug`, `debug-gpu`, and `distributed` or `legacy`, the debugger). The
defaults are safe on every cluster; settings of the fabric (interfaces, device lists, protocols) are left to the user.
`plan` prints the rows, and cluster.env changes or removes any.

    >>> [var.name for var in accelerator_env("cpu")][:2]
    ['TORCHDYNAMO_DISABLE', 'VLLM_ENABLE_V1_MULTIPROCESSING']
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # the node agent has no pydantic
    from slurm_rl.config.run import RunConfig

AcceleratorKind = Literal["nvidia", "amd", "cpu"]


@dataclass(frozen=True)
class EnvVar:
    """An environment variable and the reason for it."""

    name: str
    value: str
    reason: str


NOSET_FLAGS = (
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
    "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES",
)
"""Variables that keep Ray from masking GPUs inside an actor."""


@cache
def read_rows() -> tuple[tuple[str, EnvVar], ...]:
    """Return (`when`, variable) of each row of accelerator.csv."""
    text = Path(__file__).with_suffix(".csv").read_text(encoding="utf-8")
    return tuple((row.pop("when"), EnvVar(**row)) for row in csv.DictReader(text.splitlines()))


def _rows_of(*when: str) -> list[EnvVar]:
    return [variable for names, variable in read_rows() if set(when) & set(names.split())]


def accelerator_env(
    kind: AcceleratorKind,
    *,
    network_interface: str | None = None,
    trace_dir: str | None = None,
) -> list[EnvVar]:
    """Return the variables of torch, NCCL or RCCL, HIP and vLLM.

    Args:
        kind: the accelerator.
        network_interface: interface of NCCL's and gloo's sockets; None: chosen by them.
        trace_dir: folder for NCCL's flight recorder dumps; None: each node's /tmp.
    """
    env = _rows_of(kind)
    if kind == "amd":
        reason = "a mask set inside an actor comes too late for HIP, and breaks RCCL's IPC"
        env += [EnvVar(name, "1", reason) for name in NOSET_FLAGS]
    if network_interface is not None:
        reason = "the interface named by the user"
        env.append(EnvVar("GLOO_SOCKET_IFNAME", network_interface, reason))
        if kind != "cpu":
            env.append(EnvVar("NCCL_SOCKET_IFNAME", network_interface, reason))
    if trace_dir is not None and kind != "cpu":
        prefix = f"{trace_dir}/nccl_trace_rank_"
        env.append(EnvVar("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", prefix, "the dumps outlive the nodes' /tmp"))
    return env


# From this size on the head's queue of registrations outlasts Ray's timeouts.
_BURST_NODES = 32


def ray_env(num_nodes: int) -> list[EnvVar]:
    """Return Ray's variables for a cluster of this size."""
    if num_nodes < _BURST_NODES:
        return _rows_of("ray")
    num_threads = min(64, num_nodes // 2)
    reason = f"{num_nodes} nodes register at once; the default is a quarter of the head's cores"
    threads = [
        EnvVar(f"RAY_{pool}", str(num_threads), reason)
        for pool in ("gcs_server_rpc_server_thread_num", "gcs_server_rpc_client_thread_num", "num_server_call_thread")
    ]
    return _rows_of("ray", "burst") + threads


def cache_env(kind: AcceleratorKind, run_dir: str) -> list[EnvVar]:
    """Return the variables that move caches out of a container's home, which may be missing or read-only."""
    rows = _rows_of("container-all", *(["container-gpu"] if kind != "cpu" else []))
    return [replace(row, value=row.value.format(run_dir=run_dir)) for row in rows]


def merge_env(base: Iterable[EnvVar], overrides: Mapping[str, str | None]) -> list[EnvVar]:
    """Return the variables with the user's overrides, sorted by name; None removes a variable."""
    merged = {var.name: var for var in base}
    for name, value in overrides.items():
        merged.pop(name, None)
        if value is not None:
            merged[name] = EnvVar(name, value, "set by the user")
    return sorted(merged.values(), key=lambda var: var.name)


def debug_env(kind: AcceleratorKind, debugger: str, log_dir: str) -> list[EnvVar]:
    """Return the variables of job.debug, which override those of accelerator_env and ray_env.

    Args:
        debugger: Ray's `distributed` or `legacy` debugger.
        log_dir: folder for NCCL's logs.
    """
    if kind == "cpu":
        return _rows_of("debug", debugger)
    # NCCL replaces %h and %p by host and process.
    log = EnvVar("NCCL_DEBUG_FILE", f"{log_dir}/nccl-%h-%p.log", "debug: one file per process in the run directory")
    return [*_rows_of("debug", debugger, "debug-gpu"), log]


def list_variables(config: RunConfig, run_dir: str) -> list[EnvVar]:
    """Return the environment of every process of a run, with cluster.env applied."""
    return merge_env(_list_defaults(config, run_dir), config.cluster.env)


def _list_defaults(config: RunConfig, run_dir: str) -> list[EnvVar]:
    cluster = config.cluster
    table = [
        *accelerator_env(cluster.accelerator, network_interface=cluster.network_interface, trace_dir=run_dir),
        *ray_env(cluster.num_nodes),
        *(cache_env(cluster.accelerator, run_dir) if config.container.image is not None else ()),
        *(() if cluster.internet else _rows_of("offline")),
        *(debug_env(cluster.accelerator, config.job.debugger, run_dir) if config.job.debug else ()),
    ]
    if config.under_torchrun:
        return [item for item in table if not item.name.startswith(("RAY_", "VLLM_"))]
    if cluster.launcher_entry.existing:
        # Ray's daemons are already running.
        table = [item for item in table if item not in ray_env(cluster.num_nodes)]
    if config.external is not None:
        # Other trainers rely on Ray to mask the GPUs of each actor.
        return [item for item in table if not item.name.startswith("RAY_EXPERIMENTAL_NOSET_")]
    return table
