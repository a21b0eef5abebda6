"""Cgroups that slurmd makes for its jobs.

Debian's slurmd is built with multiple-slurmd support: it works below /slurm_<node> in each controller, and clusters
never share a node name.
"""

import contextlib
import functools
from pathlib import Path

from tests.slurm.cluster.waiting import wait_until

MOUNT = Path("/sys/fs/cgroup")
CONTROLLERS = ("freezer", "memory", "devices", "cpuacct")


def has_cgroup_v1() -> bool:
    """Return whether cgroup v1 is mounted; without it (v2 needs systemd), nodes use proctrack/linuxproc."""
    return all((MOUNT / controller / "cgroup.procs").exists() for controller in CONTROLLERS)


def remove_cgroups(node: str) -> None:
    """Remove the cgroups of a node; retry, because the kernel frees them shortly after the last process ends."""
    for top in MOUNT.glob(f"*/slurm_{node}"):
        wait_until(functools.partial(_is_removed, top), f"{top} to be free of processes", timeout_s=60)


def _is_removed(top: Path) -> bool:
    for directory in [*sorted(top.rglob("*/"), reverse=True), top]:
        with contextlib.suppress(OSError):
            directory.rmdir()
    return not top.exists()
