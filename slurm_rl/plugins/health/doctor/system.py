"""What needs no torch: versions, memory, limits, RDMA, disks."""

from __future__ import annotations

import os
import re
import resource
import socket
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from slurm_rl.disk import describe_disk
from slurm_rl.errors import SlurmRLError
from slurm_rl.node.image_report import collect_report
from slurm_rl.plan.judge import find_mismatches
from slurm_rl.plugins.health.doctor.finding import Finding, Question, State, no_gpu
from slurm_rl.run_dir import read_json, write_json

_INFINIBAND = Path("/sys/class/infiniband")
_DEVICES = Path("/dev/infiniband")
# Segments of NCCL and of torch's own queues; Ray's object store comes on top.
_LEAST_SHM = 1e9
# Ray makes no more objects on a disk that is fuller (local_fs_capacity_threshold).
_FULL = 0.95


def look_at_versions(question: Question) -> list[Finding]:
    plan = question.plan
    versions = collect_report()["versions"]
    wrong = find_mismatches(versions, plan.expected, plan.container["runtime"])
    found = [
        Finding(f"version of {one.name}", "wrong", one.seen or "not there", one.expected, one.remedy) for one in wrong
    ]
    fit = [f"{name} {versions[name]}" for name in plan.expected if name not in {one.name for one in wrong}]
    return [*found, *([Finding("versions", "ok", ", ".join(fit), "those of the plan")] if fit else [])]


def look_at_shm(question: Question, folder: Path = Path("/dev/shm")) -> list[Finding]:
    """Ray's object store lies there, and what ranks of a node send each other."""
    plan = question.plan
    under_ray = plan.torchrun is None
    least = plan.ray.object_store_bytes if under_ray else _LEAST_SHM
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        return [Finding("/dev/shm", "wrong", str(error.strerror), "there", "mount a tmpfs on it")]
    free = disk.f_bavail * disk.f_frsize
    should = f">= {least / 1e9:.3g} GB free" + (" (ray.object_store_gb)" if under_ray else "")
    action = (
        "container.shm_size_gb, or null for the host's; a smaller ray.object_store_gb; or remove what is left there"
    )
    state: State = "ok" if free >= least else "wrong"
    return [Finding("/dev/shm", state, f"{free / 1e9:.3g} GB free", should, "" if state == "ok" else action, free)]


def look_at_memlock(question: Question) -> list[Finding]:
    """RDMA pins the memory that it reads and writes; NCCL falls back to TCP where it may not."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    is_free = soft == resource.RLIM_INFINITY
    seen = "unlimited" if is_free else f"{soft / 1024:.0f} KiB"
    if not question.on_gpus or not read_ports():
        return [Finding("memlock", "ok", seen, "any, without GPUs and RDMA")]
    action = (
        "LimitMEMLOCK=infinity in slurmd's unit, and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf; in podman or "
        "docker --ulimit=memlock=-1 (container.extra_args)"
    )
    return [Finding("memlock", "ok" if is_free else "wrong", seen, "unlimited, for RDMA", "" if is_free else action)]


def look_at_rdma(question: Question, sys: Path = _INFINIBAND, dev: Path = _DEVICES) -> list[Finding]:
    """The ports that the kernel has, and whether a process here may open them."""
    if not question.on_gpus:
        return [no_gpu("rdma")]
    ports = read_ports(sys)
    active = {name: rate for name, (is_up, rate) in ports.items() if is_up}
    if not ports:
        seen = "no device: NCCL uses TCP" if question.plan.num_nodes > 1 else "no device; one node needs none"
        return [Finding("rdma", "unseen", seen)]
    seen = f"{len(active)} of {len(ports)} ports active, " + ", ".join(
        sorted({f"{rate:g} Gb/s" for rate in active.values()})
    )
    should = "active ports, and /dev/infiniband"
    if not active:
        action = "ibstat on the node; the cable, the switch or the subnet manager"
        return [Finding("rdma", "wrong", f"none of {len(ports)} ports is active: {', '.join(ports)}", should, action)]
    if not _may_open(dev.glob("uverbs*")):
        action = "--device=/dev/infiniband (container.extra_args), or the udev rules of rdma-core on the host"
        return [Finding("rdma", "wrong", f"{seen}; no {dev}/uverbs* that may be opened", should, action)]
    return [Finding("rdma", "ok", seen, should)]


def read_ports(folder: Path = _INFINIBAND) -> dict[str, tuple[bool, float]]:
    """Device and port -> whether it is active, and its rate in Gb/s."""
    found = {}
    for port in sorted(folder.glob("*/ports/*")):
        try:
            state = (port / "state").read_text(encoding="ascii")
            rate = re.match(r"[\d.]+", (port / "rate").read_text(encoding="ascii"))
        except OSError:
            continue
        found[f"{port.parts[-3]}:{port.name}"] = ("ACTIVE" in state, float(rate[0]) if rate else 0.0)
    return found


def _may_open(devices: Iterable[Path]) -> bool:
    for device in devices:
        try:
            os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
        except OSError:
            continue
        return True
    return False


def look_at_tmp_root(question: Question) -> list[Finding]:
    """Ray's sockets and spilled objects: a node's own disk, with room, on which a socket can be bound."""
    root = Path(question.plan.tmp_root)
    should = f"less than {_FULL:.0%} full, and it takes sockets"
    try:
        disk = os.statvfs(root)
        # Short: the path of a Unix socket holds 107 bytes.
        with tempfile.TemporaryDirectory(prefix="srl-", dir=root) as folder, socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"{folder}/s")
    except OSError as error:
        seen = f"{root}: {error.strerror or error}"
        return [Finding("tmp_root", "wrong", seen, should, "cluster.tmp_root: a short path on a node's own disk")]
    used = 1 - disk.f_bavail / max(1, disk.f_blocks)
    seen = f"{describe_disk(root)}"
    if used < _FULL:
        return [Finding("tmp_root", "ok", seen, should)]
    return [Finding("tmp_root", "wrong", seen, should, "make room there, or name another cluster.tmp_root")]


def look_at_run_root(question: Question) -> list[Finding]:
    """Every node writes into the run directory and reads what others wrote."""
    began = time.monotonic()
    path = question.folder / f"written-{question.rank}.json"
    should = "writable, as every node sees it"
    try:
        write_json(path, {"rank": question.rank})
        is_same = read_json(path) == {"rank": question.rank}
    except (OSError, SlurmRLError) as error:
        action = "cluster.run_root: a folder that all nodes share, and that you may write to; in a container a mount"
        return [Finding("run_root", "wrong", str(error), should, action)]
    seen = f"{question.folder.parent}: written, synced and read in {(time.monotonic() - began) * 1000:.0f} ms"
    action = "" if is_same else "it does not give back what was written: see its server"
    return [Finding("run_root", "ok" if is_same else "wrong", seen, should, action)]
