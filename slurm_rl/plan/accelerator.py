"""The environment of each accelerator and of Ray, every variable with its reason.

The variables are rows of accelerator.csv. `when` says where a row is set: for an accelerator (torch.distributed and
RCCL read NCCL's names, too), for Ray (`ray`, and `burst` on many nodes), with job.debug=true (`debug`, `debug-gpu`, and
`distributed` or `legacy`, the debugger). Only what is safe on every cluster is on by default; what depends on the
fabric (interfaces, InfiniBand device lists, protocols) is set when the user names it. `plan` prints the rows, and
`merge_env` lets the user change or remove any.

    >>> [var.name for var in accelerator_env("cpu")][:2]
    ['TORCHDYNAMO_DISABLE', 'VLLM_ENABLE_V1_MULTIPROCESSING']
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from slurm_rl.errors import ConfigError

AcceleratorKind = Literal["nvidia", "amd", "cpu"]


@dataclass(frozen=True)
class EnvVar:
    """One environment variable and why it is set."""

    name: str
    value: str
    reason: str


NOSET_FLAGS = (
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
    "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES",
)
"""Keep Ray from masking GPUs inside an actor."""


@cache
def read_rows() -> tuple[tuple[str, EnvVar], ...]:
    """(when it is set, the variable) of each row of accelerator.csv."""
    text = Path(__file__).with_suffix(".csv").read_text(encoding="utf-8")
    return tuple((row.pop("when"), EnvVar(**row)) for row in csv.DictReader(text.splitlines()))


def _rows_of(*when: str) -> list[EnvVar]:
    return [variable for told, variable in read_rows() if set(when) & set(told.split())]


def accelerator_env(
    kind: AcceleratorKind,
    *,
    network_interface: str | None = None,
    trace_dir: str | None = None,
) -> list[EnvVar]:
    """What torch, NCCL or RCCL, HIP and vLLM need on this accelerator.

    Args:
        kind: which table.
        network_interface: for the sockets of NCCL and gloo; None lets them choose.
        trace_dir: where a NCCL hang leaves its dumps; None leaves them in each node's /tmp.
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


# From here on thousands of workers register at once, and the head's queue outlasts the timeouts.
_BURST_NODES = 32


def ray_env(num_nodes: int) -> list[EnvVar]:
    """What Ray's processes need at this size; small clusters keep Ray's quick health checks."""
    if num_nodes < _BURST_NODES:
        return _rows_of("ray")
    num_threads = min(64, num_nodes // 2)
    reason = f"{num_nodes} nodes register at once; the default is a quarter of the head's cores"
    threads = [
        EnvVar(f"RAY_{pool}", str(num_threads), reason)
        for pool in ("gcs_server_rpc_server_thread_num", "gcs_server_rpc_client_thread_num", "num_server_call_thread")
    ]
    return _rows_of("ray", "burst") + threads


def merge_env(base: Iterable[EnvVar], overrides: Mapping[str, str | None]) -> list[EnvVar]:
    """The table with the user's own values, which win; None removes a variable. Sorted by name."""
    merged = {var.name: var for var in base}
    for name, value in overrides.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ConfigError(
                "the name of an environment variable holds letters, digits and _",
                seen=repr(name),
                action="write NAME: value, one variable a line",
            )
        merged.pop(name, None)
        if value is not None:
            merged[name] = EnvVar(name, value, "set by the user")
    return sorted(merged.values(), key=lambda var: var.name)


def debug_env(kind: AcceleratorKind, debugger: str, log_dir: str) -> list[EnvVar]:
    """Rows that go over those of accelerator_env and ray_env.

    Args:
        debugger: `distributed` or `legacy`, both Ray's.
        log_dir: a folder that outlives the job, for NCCL's logs.
    """
    if kind == "cpu":
        return _rows_of("debug", debugger)
    # %h and %p are NCCL's own words for host and process.
    log = EnvVar("NCCL_DEBUG_FILE", f"{log_dir}/nccl-%h-%p.log", "debug: beside the run, not between others' lines")
    return [*_rows_of("debug", debugger, "debug-gpu"), log]
