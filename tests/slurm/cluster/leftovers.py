"""Files and processes that a job left on a node."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.slurm.cluster.node import Node, NodeProcess

SLURMD_PORT = 6818
LISTEN = "0A"


@dataclass(frozen=True)
class Leftovers:
    """Everything on a node that an idle node does not have; falsy if empty."""

    processes: list[NodeProcess] = field(default_factory=list)
    """Includes the slurmstepd of a running job."""
    ports: list[int] = field(default_factory=list)
    """Listening TCP ports other than slurmd's."""
    shm: list[str] = field(default_factory=list)
    """Paths in /dev/shm."""
    tmp: list[str] = field(default_factory=list)
    """Paths in the node's private /tmp, outside the shared folders."""

    def __bool__(self) -> bool:
        return bool(self.processes or self.ports or self.shm or self.tmp)


def find_leftovers(node: Node) -> Leftovers:
    """Inspect the node from outside, so that the inspection leaves nothing there."""
    inside = node.init / "root"
    shared = [Path(os.path.relpath(folder, "/")) for folder in (node.root, *node.shared)]
    return Leftovers(
        processes=[process for process in node.processes() if not _is_own(process)],
        ports=sorted(set(_listening(node.init / "net"))),
        shm=sorted(f"/dev/shm/{path.name}" for path in (inside / "dev/shm").iterdir()),
        tmp=sorted(f"/{path.relative_to(inside)}" for path in _strays(inside / "tmp", [inside / s for s in shared])),
    )


def _is_own(process: NodeProcess) -> bool:
    program = process.cmdline.split()[0]
    # While slurmd starts, pid 1 is the shell that sets up the node; later that shell restarts slurmd.
    is_shell = process.cmdline.startswith("sh -c while slurmd ")
    return process.pid == 1 or is_shell or Path(program).name == "slurmd"


def _listening(net: Path) -> Iterator[int]:
    for table in ("tcp", "tcp6"):
        for line in (net / table).read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            port = int(local.rpartition(":")[2], 16)
            if state == LISTEN and port != SLURMD_PORT:
                yield port


def _strays(directory: Path, shared: list[Path]) -> Iterator[Path]:
    """Yield entries of `directory` that neither are nor contain a shared folder."""
    for entry in directory.iterdir():
        if entry in shared:
            continue
        if any(entry in folder.parents for folder in shared):
            yield from _strays(entry, shared)
        else:
            yield entry
