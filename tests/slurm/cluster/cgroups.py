"""Cgroups that slurmd makes for its jobs: are there any, and removing those of a node that lost its power.

Debian's slurmd is built for several on one machine: it works below /slurm_<node> in each controller, and no
two clusters of ours have a node name in common.
"""

import contextlib
import functools
from pathlib import Path

from tests.slurm.cluster.waiting import wait_until

MOUNT = Path("/sys/fs/cgroup")
CONTROLLERS = ("freezer", "memory", "devices", "cpuacct")


def has_cgroup_v1() -> bool:
    """Slurm's v2 plugin needs systemd; without v1 the nodes run with no cgroups (proctrack/linuxproc)."""
    return all((MOUNT / controller / "cgroup.procs").exists() for controller in CONTROLLERS)


def remove_cgroups(node: str) -> None:
    """Remove what slurmd made for this node. The kernel lets go a moment after the last process."""
    for top in MOUNT.glob(f"*/slurm_{node}"):
        wait_until(functools.partial(_is_removed, top), f"{top} to be free of processes", timeout_s=60)


def _is_removed(top: Path) -> bool:
    for directory in [*sorted(top.rglob("*/"), reverse=True), top]:
        with contextlib.suppress(OSError):
            directory.rmdir()
    return not top.exists()
