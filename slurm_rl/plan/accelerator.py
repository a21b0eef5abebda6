"""The environment of each accelerator and of Ray, every variable with its reason.

Only what is safe on every cluster is on by default; what depends on the fabric (interfaces, InfiniBand
device lists, protocols) is set when the user names it. `plan` prints these tables, and `merge_env` lets
the user change or remove any row.

    >>> [var.name for var in accelerator_env("cpu")][:2]
    ['TORCHDYNAMO_DISABLE', 'VLLM_ENABLE_V1_MULTIPROCESSING']

What job.debug=true adds stands here too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
    "RAY_EXPERIMENTAL_NOSET_ROCR_VISIBLE_DEVICES",
)
"""Keep Ray from masking GPUs inside an actor."""

# torch.distributed reads the same variables for NCCL and RCCL.
_GPU = [
    EnvVar("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", "a failed collective ends its process, not the whole time limit"),
    EnvVar("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", "flight recorder: the last 2000 collectives (events, not bytes)"),
    EnvVar("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "a hang leaves the flight recorder's file of every rank"),
    EnvVar("TORCH_INCLUDE_STACK_TRACE", "0", "Python stacks in that dump can wait for the GIL for ever"),
    EnvVar("NCCL_DEBUG", "WARN", "errors with their cause, nothing else"),
    EnvVar("TOKENIZERS_PARALLELISM", "false", "tokenizer threads and fork do not go together"),
    EnvVar("VLLM_WORKER_MULTIPROC_METHOD", "spawn", "a forked child cannot use a GPU that its parent has opened"),
    EnvVar("VLLM_ENABLE_V1_MULTIPROCESSING", "0", "the engine lives in its actor's process and ends with it"),
    EnvVar("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0", "actors with num_gpus=0 keep seeing GPUs, in every Ray version"),
]
_NVIDIA = [
    EnvVar("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "CUDA counts GPUs as nvidia-smi and Slurm do, also on mixed nodes"),
]
_AMD = [
    EnvVar("HSA_NO_SCRATCH_RECLAIM", "1", "keeps scratch memory between kernels; giving it back costs a stall each"),
    EnvVar("GPU_MAX_HW_QUEUES", "2", "more hardware queues than this delay the overlap of RCCL with compute"),
    EnvVar("TORCH_NCCL_HIGH_PRIORITY", "1", "RCCL's stream is not starved by compute"),
    *(
        EnvVar(name, "1", "a mask set inside an actor comes too late for HIP, and breaks RCCL's IPC")
        for name in NOSET_FLAGS
    ),
]
_CPU = [
    EnvVar("TORCHDYNAMO_DISABLE", "1", "no compiler needed at run time, no minutes of compilation"),
    EnvVar("VLLM_ENABLE_V1_MULTIPROCESSING", "0", "the engine lives in its actor's process and ends with it"),
    EnvVar("VLLM_CPU_OMP_THREADS_BIND", "nobind", "binding to cores that another job or actor holds starves both"),
    EnvVar("TOKENIZERS_PARALLELISM", "false", "tokenizer threads and fork do not go together"),
    EnvVar("DS_ACCELERATOR", "cpu", "DeepSpeed would look for a GPU"),
]
_TABLES: dict[AcceleratorKind, list[EnvVar]] = {"nvidia": _GPU + _NVIDIA, "amd": _GPU + _AMD, "cpu": _CPU}


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
    env = list(_TABLES[kind])
    if network_interface is not None:
        reason = "the interface named by the user"
        env.append(EnvVar("GLOO_SOCKET_IFNAME", network_interface, reason))
        if kind != "cpu":
            env.append(EnvVar("NCCL_SOCKET_IFNAME", network_interface, reason))
    if trace_dir is not None and kind != "cpu":
        prefix = f"{trace_dir}/nccl_trace_rank_"
        env.append(EnvVar("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", prefix, "the dumps outlive the nodes' /tmp"))
    return env


_RAY = [
    EnvVar("RAY_prestart_worker_first_driver", "0", "our actors get processes of their own; one a core would idle"),
    EnvVar("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0", "no new virtual environment for every worker under `uv run`"),
    EnvVar("RAY_USAGE_STATS_ENABLED", "0", "no telemetry from a compute node, which often has no way out"),
    EnvVar("RAY_worker_niceness", "0", "Ray's 15 is for sharing a machine; here the trainer and engines are the job"),
    EnvVar("RAY_worker_register_timeout_seconds", "120", "60 s is too short when all import torch from one NFS"),
    EnvVar("RAY_gcs_rpc_server_connect_timeout_s", "120", "5 s is lost as soon as the head is busy"),
    EnvVar("RAY_gcs_rpc_server_reconnect_timeout_s", "120", "likewise"),
    EnvVar("RAY_gcs_server_request_timeout_seconds", "120", "likewise"),
]
# From here on thousands of workers register at once, and the head's queue outlasts the timeouts.
_BURST_NODES = 32
_RAY_BURST = [
    EnvVar("RAY_num_workers_soft_limit", "16", "fewer idle workers, each of which is a connection to the head"),
    EnvVar("RAY_raylet_report_resources_period_milliseconds", "500", "100 ms times all nodes drowns the head"),
    EnvVar("RAY_task_events_report_interval_ms", "5000", "only the dashboard reads them"),
    EnvVar("RAY_grpc_keepalive_time_ms", "60000", "a ping of each connection every 10 s is a load of its own"),
    EnvVar("RAY_grpc_keepalive_timeout_ms", "60000", "a head that is busy is not dead"),
    EnvVar("RAY_enable_timeline", "false", "one write to the head less per task"),
    EnvVar("RAY_event_stats", "false", "statistics of Ray's own event loops"),
    EnvVar("RAY_health_check_period_ms", "10000", "a dead node is seen through its Slurm step long before"),
]


def ray_env(num_nodes: int) -> list[EnvVar]:
    """What Ray's processes need at this size; small clusters keep Ray's quick health checks."""
    if num_nodes < _BURST_NODES:
        return list(_RAY)
    num_threads = min(64, num_nodes // 2)
    reason = f"{num_nodes} nodes register at once; the default is a quarter of the head's cores"
    threads = [
        EnvVar(f"RAY_{pool}", str(num_threads), reason)
        for pool in ("gcs_server_rpc_server_thread_num", "gcs_server_rpc_client_thread_num", "num_server_call_thread")
    ]
    return _RAY + _RAY_BURST + threads


def merge_env(base: Iterable[EnvVar], overrides: Mapping[str, str | None]) -> list[EnvVar]:
    """The table with the user's own values, which win; None removes a variable. Sorted by name."""
    merged = {var.name: var for var in base}
    for name, value in overrides.items():
        _check_name(name)
        merged.pop(name, None)
        if value is not None:
            merged[name] = EnvVar(name, value, "set by the user")
    return sorted(merged.values(), key=lambda var: var.name)


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ConfigError(
            "the name of an environment variable holds letters, digits and _",
            seen=repr(name),
            action="write NAME: value, one variable a line",
        )


_EVERYWHERE = [
    EnvVar("PYTHONFAULTHANDLER", "1", "debug: a crash in C code leaves the Python stacks of all threads in the log"),
    EnvVar("TORCH_DISTRIBUTED_DEBUG", "INFO", "debug: torch.distributed says what it sets up and what differs by rank"),
    EnvVar("TORCH_CPP_LOG_LEVEL", "INFO", "debug: the messages above are in C++"),
    EnvVar("VLLM_LOGGING_LEVEL", "DEBUG", "debug: the engine's scheduler and workers"),
]
_DEBUGGERS = {
    "distributed": EnvVar(
        "RAY_DEBUG_POST_MORTEM",
        "1",
        "debug: a task that raises waits for Ray's distributed debugger (needs debugpy; VS Code's extension, by "
        "`tunnel`), at the most until its deadline ends the run",
    ),
    "legacy": EnvVar("RAY_DEBUG", "legacy", "debug: breakpoint() waits for `ray debug`, by `attach`"),
}
# RCCL reads NCCL's names. %h and %p are its own words for host and process.
_COLLECTIVES = [
    EnvVar("NCCL_DEBUG", "INFO", "debug: rings, transports and interfaces, and each error's cause"),
    EnvVar("NCCL_DEBUG_SUBSYS", "INIT,NET,GRAPH,ENV", "debug: not every collective, of which there are millions"),
    EnvVar("TORCH_NCCL_TRACE_BUFFER_SIZE", "20000", "debug: flight recorder: the last 20000 collectives"),
    EnvVar("TORCH_NCCL_DESYNC_DEBUG", "1", "debug: on a time-out, which rank is where"),
]


def debug_env(kind: AcceleratorKind, debugger: str, log_dir: str) -> list[EnvVar]:
    """Rows that go over those of accelerator_env and ray_env.

    Args:
        debugger: `distributed` or `legacy`, both Ray's.
        log_dir: a folder that outlives the job, for NCCL's logs.
    """
    rows = [*_EVERYWHERE, _DEBUGGERS[debugger], EnvVar("RAY_BACKEND_LOG_LEVEL", "debug", "debug: Ray's own processes")]
    if kind == "cpu":
        return rows
    log = EnvVar("NCCL_DEBUG_FILE", f"{log_dir}/nccl-%h-%p.log", "debug: beside the run, not between others' lines")
    return [*rows, *_COLLECTIVES, log]


def is_legacy(env: dict[str, str]) -> bool:
    """Whether `ray start` must let the legacy debugger be reached from other nodes."""
    return env.get("RAY_DEBUG") == "legacy"
