"""What job.debug=true adds to the environment, every variable with its reason. Pure."""

from __future__ import annotations

from slurm_rl.plan.accelerator import AcceleratorKind, EnvVar

_EVERYWHERE = [
    EnvVar("PYTHONFAULTHANDLER", "1", "debug: a crash in C code leaves the Python stacks of all threads in the log"),
    EnvVar("TORCH_DISTRIBUTED_DEBUG", "INFO", "debug: torch.distributed says what it sets up and what differs by rank"),
    EnvVar("TORCH_CPP_LOG_LEVEL", "INFO", "debug: the messages above are in C++"),
    EnvVar("VLLM_LOGGING_LEVEL", "DEBUG", "debug: the engine's scheduler and workers"),
]
_RAY = {
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
    rows = [*_EVERYWHERE, _RAY[debugger], EnvVar("RAY_BACKEND_LOG_LEVEL", "debug", "debug: Ray's own processes")]
    if kind == "cpu":
        return rows
    log = EnvVar("NCCL_DEBUG_FILE", f"{log_dir}/nccl-%h-%p.log", "debug: beside the run, not between others' lines")
    return [*rows, *_COLLECTIVES, log]


def is_legacy(env: dict[str, str]) -> bool:
    """Whether `ray start` must let the legacy debugger be reached from other nodes."""
    return env.get("RAY_DEBUG") == "legacy"
