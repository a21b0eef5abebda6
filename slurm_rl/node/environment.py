"""The environment of all children of a node agent, and the GPUs of the node. Standard library only."""

import os
import re
from pathlib import Path

from slurm_rl.node.heartbeat import HEARTBEATS
from slurm_rl.node.network import network_environment
from slurm_rl.node.ports import PortPlan
from slurm_rl.node.processes import mark_env
from slurm_rl.node.rank_discovery import NodeRole
from slurm_rl.node.ray_cluster import ray_environment
from slurm_rl.plan.accelerator import AcceleratorKind
from slurm_rl.plan.job import HOSTS_VARIABLE, JobPlan
from slurm_rl.plan.visibility import normalise_gpu_visibility, parse_kfd_device
from slurm_rl.run_dir.run_dir import RunDir

_TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
_DRI = Path("/dev/dri")


def child_environment(
    run: RunDir, plan: JobPlan, attempt: int, role: NodeRole, ports: PortPlan, mark: str, tmp_dir: Path
) -> dict[str, str]:
    """Return the environment for Ray or torchrun and the trainer."""
    # A nested launcher that sees SLURM_* or PMI_* would take itself for a task of srun.
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "PMI", "PMIX"))}
    env |= plan.env
    if plan.torchrun is None:
        env |= ray_environment(plan, run, attempt, ports)
    uuids = read_device_uuids() if plan.accelerator == "amd" else []
    env = normalise_gpu_visibility(os.environ, plan.accelerator, plan.gpus_on(role.rank), uuids).apply(env)
    env |= network_environment(plan, role, env)
    if role.hosts:
        env[HOSTS_VARIABLE] = ",".join(role.hosts)
    # On import torch writes its default cache below TMPDIR into the environment, which a notebook or a test that
    # submits passes on to every node.
    if Path(env.get("TORCHINDUCTOR_CACHE_DIR", "")).name.startswith("torchinductor_"):
        del env["TORCHINDUCTOR_CACHE_DIR"]
    # Libraries put files into TMPDIR; there they are removed at the end of the attempt.
    return {**env, **mark_env(mark), "TMPDIR": str(tmp_dir), HEARTBEATS: str(tmp_dir / "heartbeats")}


def find_accelerator(dev: Path = Path("/dev")) -> tuple[AcceleratorKind, int]:
    """Return kind and number of the machine's GPUs."""
    if devices := [path for path in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]:
        return "nvidia", len(devices)
    if (dev / "kfd").exists():
        return "amd", max(1, len(read_device_uuids()))
    return "cpu", 0


def read_device_uuids(topology: Path = _TOPOLOGY, dri: Path = _DRI) -> list[str]:
    """Return the UUIDs of the AMD GPUs that the task's cgroup allows, in ROCR's order; empty without a topology."""
    if not topology.is_dir():
        return []
    nodes = sorted((path for path in topology.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    uuids = []
    for node in nodes:
        try:
            device = parse_kfd_device((node / "properties").read_text(encoding="ascii"))
        except OSError:
            continue  # the driver hides devices that the task may not use
        if device is not None and _may_open(dri / f"renderD{device[1]}"):
            uuids.append(device[0])
    return uuids


def _may_open(device: Path) -> bool:
    # A device cgroup refuses even if the mode of the file allows access.
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True
