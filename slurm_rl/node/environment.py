"""The environment of everything that a node agent starts, AMD's devices in it by the kernel's own table. Standard
library alone."""

from __future__ import annotations

import os
import re
from pathlib import Path

from slurm_rl.beats.pulse import BEATS
from slurm_rl.node.discovery import NodeRole
from slurm_rl.node.network import network_environment
from slurm_rl.node.ports import PortPlan
from slurm_rl.node.processes import mark_env
from slurm_rl.node.ray_cluster import ray_environment
from slurm_rl.plan.accelerator import AcceleratorKind
from slurm_rl.plan.job import HOSTS_VARIABLE, JobPlan
from slurm_rl.plan.visibility import normalise_gpu_visibility, parse_kfd_device
from slurm_rl.run_dir import RunDir

_TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
_DRI = Path("/dev/dri")


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
    change = normalise_gpu_visibility(os.environ, plan.accelerator, plan.gpus_on(role.rank), uuids)
    env = change.apply(env)
    env |= network_environment(plan, role, env)
    if role.hosts:
        env[HOSTS_VARIABLE] = ",".join(role.hosts)
    # Libraries drop files into TMPDIR (vLLM its rendezvous); there they go when the attempt ends.
    if _is_torchs_default(env.get("TORCHINDUCTOR_CACHE_DIR", "")):
        del env["TORCHINDUCTOR_CACHE_DIR"]
    return {**env, **mark_env(mark), "TMPDIR": str(tmp_dir), BEATS: str(tmp_dir / "beats")}


def _is_torchs_default(cache_dir: str) -> bool:
    """Whether torch chose this cache itself. On import it writes its choice, below the TMPDIR of that process,
    into its environment; a notebook or a test that submits hands that on, and every node would get the folder."""
    return Path(cache_dir).name.startswith("torchinductor_")


def find_accelerator(dev: Path = Path("/dev")) -> tuple[AcceleratorKind, int]:
    """Return the kind and the number of the machine's GPUs."""
    if devices := [path for path in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]:
        return "nvidia", len(devices)
    if (dev / "kfd").exists():
        return "amd", max(1, len(read_device_uuids()))
    return "cpu", 0


def read_device_uuids(topology: Path = _TOPOLOGY, dri: Path = _DRI) -> list[str]:
    """UUIDs of the GPUs that a task's cgroup lets it open, in the order in which ROCR counts them.

    Empty where the kernel shows no topology (inside some containers).
    """
    if not topology.is_dir():
        return []
    nodes = sorted((path for path in topology.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    found = []
    for node in nodes:
        try:
            properties = (node / "properties").read_text(encoding="ascii")
        except OSError:
            continue  # the driver hides what the task may not use
        device = parse_kfd_device(properties)
        if device is not None and _may_open(dri / f"renderD{device[1]}"):
            found.append(device[0])
    return found


def _may_open(device: Path) -> bool:
    # Only trying tells: a device cgroup refuses although the file's mode allows it.
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True
