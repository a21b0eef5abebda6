"""The environment of every process of a run, with the reason of each variable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_rl.config.launchers import LAUNCHERS
from slurm_rl.plan.accelerator import EnvVar, accelerator_env, debug_env, merge_env, ray_env

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig


def list_variables(config: RunConfig, run_dir: str) -> list[EnvVar]:
    """Ours, and over them those of `cluster.env`."""
    return merge_env(_table(config, run_dir), config.cluster.env)


def _table(config: RunConfig, run_dir: str) -> list[EnvVar]:
    cluster = config.cluster
    table = [
        *accelerator_env(cluster.accelerator, network_interface=cluster.network_interface, trace_dir=run_dir),
        *ray_env(cluster.num_nodes),
        *(debug_env(cluster.accelerator, config.job.debugger, run_dir) if config.job.debug else ()),
    ]
    if config.under_torchrun:
        return [item for item in table if not item.name.startswith(("RAY_", "VLLM_"))]
    if LAUNCHERS[cluster.launcher].existing:
        # Its daemons are up already; what is left is for our own processes.
        table = [item for item in table if item not in ray_env(cluster.num_nodes)]
    if config.external is not None:
        # Other trainers count on Ray to show each actor its own GPUs, and no others.
        return [item for item in table if not item.name.startswith("RAY_EXPERIMENTAL_NOSET_")]
    return table
