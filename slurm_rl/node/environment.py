"""The environment of everything that a node agent starts. Standard library alone."""

from __future__ import annotations

import os
from pathlib import Path

from slurm_rl.node.discovery import NodeRole
from slurm_rl.node.gpus import read_device_uuids
from slurm_rl.node.network import network_environment
from slurm_rl.node.ports import PortPlan
from slurm_rl.node.processes import mark_env
from slurm_rl.node.ray_cluster import ray_environment
from slurm_rl.plan.job import HOSTS_VARIABLE, JobPlan
from slurm_rl.plan.visibility import normalise_gpu_visibility
from slurm_rl.run_dir import RunDir


def child_environment(
    run: RunDir, plan: JobPlan, attempt: int, role: NodeRole, ports: PortPlan, mark: str, tmp_dir: Path
) -> dict[str, str]:
    """This process's environment made fit for Ray or torchrun, and the trainer."""
    # A nested launcher that sees SLURM_* or PMI_* would think that it is a task of srun.
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "PMI", "PMIX"))}
    env |= plan.env
    if plan.torchrun is None:
        env |= ray_environment(plan, run, attempt, ports)
    uuids = read_device_uuids() if plan.accelerator == "amd" else []
    change = normalise_gpu_visibility(os.environ, plan.accelerator, plan.gpus_per_node, uuids)
    for name in change.unset:
        env.pop(name, None)
    env |= network_environment(plan, role, env)
    if role.hosts:
        env[HOSTS_VARIABLE] = ",".join(role.hosts)
    # Libraries drop files into TMPDIR (vLLM its rendezvous); there they go when the attempt ends.
    if _is_torchs_default(env.get("TORCHINDUCTOR_CACHE_DIR", "")):
        del env["TORCHINDUCTOR_CACHE_DIR"]
    return {**env, **change.set, **mark_env(mark), "TMPDIR": str(tmp_dir)}


def _is_torchs_default(cache_dir: str) -> bool:
    """Whether torch chose this cache itself. On import it writes its choice, below the TMPDIR of that process,
    into its environment; a notebook or a test that submits hands that on, and every node would get the folder."""
    return Path(cache_dir).name.startswith("torchinductor_")
