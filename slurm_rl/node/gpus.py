"""Which AMD devices this process may open, from the kernel's own table. Standard library alone."""

from __future__ import annotations

import os
from pathlib import Path

from slurm_rl.plan.visibility import parse_kfd_uuid

_TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
_DRI = Path("/dev/dri")


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
        uuid = parse_kfd_uuid(properties)
        if uuid is not None and _may_open(dri / f"renderD{_render_minor(properties)}"):
            found.append(uuid)
    return found


def _render_minor(properties: str) -> str:
    fields = dict(line.split(maxsplit=1) for line in properties.splitlines() if len(line.split()) == 2)
    return fields.get("drm_render_minor", "")


def _may_open(device: Path) -> bool:
    # Only trying tells: a device cgroup refuses although the file's mode allows it.
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True
