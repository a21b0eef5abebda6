"""Places for clusters beside each other: each has a number, and from it its names and addresses.

Claims are directories under /run, made under a lock. A claim whose owner is dead (a test session that
was killed) is torn down by the next one that claims, so a crash never blocks.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.slurm.cluster.daemons import start_time
from tests.slurm.cluster.packages import ClusterError

REGISTRY = Path("/run/slurm-rl-clusters")
LETTERS = "abcdefghijklmnop"


@dataclass(frozen=True)
class Slot:
    """One place: node names, network names, addresses and ports, none of which another slot has."""

    number: int

    @property
    def letter(self) -> str:
        return LETTERS[self.number]

    @property
    def directory(self) -> Path:
        return REGISTRY / self.letter

    @property
    def controller_ip(self) -> str:
        return f"10.77.{self.number}.254"

    @property
    def bridge(self) -> str:
        return f"slrl-{self.letter}"

    @property
    def controller_port(self) -> int:
        return 16800 + 10 * self.number

    @property
    def accounting_port(self) -> int:
        return self.controller_port + 1

    def node(self, index: int) -> str:
        """Name of the node with this index, from 1."""
        return f"{self.letter}{index}"

    def ip(self, index: int) -> str:
        return f"10.77.{self.number}.{index}"

    def namespace(self, node: str) -> str:
        return f"slrl-{node}"

    @property
    def root(self) -> Path | None:
        """The directory of the cluster that holds this slot."""
        claim = self._read_claim()
        return Path(claim["root"]) if claim else None

    @property
    def is_stale(self) -> bool:
        claim = self._read_claim()
        if claim is None:
            return True
        pid, started = claim["owner"]
        return bool(start_time(pid) != started)

    def _read_claim(self) -> dict[str, Any] | None:
        """What `claim` wrote; None when the claimer died before it could."""
        try:
            content: dict[str, Any] = json.loads((self.directory / "claim.json").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return content


def claimed_slots() -> list[Slot]:
    return [slot for number in range(len(LETTERS)) if (slot := Slot(number)).directory.is_dir()]


@contextlib.contextmanager
def registry_lock() -> Iterator[None]:
    """Claims and teardowns of stale claims happen one at a time on this machine."""
    REGISTRY.mkdir(exist_ok=True)
    with (REGISTRY / "lock").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def claim(root: Path) -> Slot:
    """Take the first free slot; call under `registry_lock`."""
    for number in range(len(LETTERS)):
        slot = Slot(number)
        if not slot.directory.exists():
            owner = os.getpid(), start_time(os.getpid())
            slot.directory.mkdir()
            (slot.directory / "claim.json").write_text(json.dumps({"root": str(root), "owner": owner}))
            return slot
    raise ClusterError(f"all {len(LETTERS)} places for test clusters are taken; see {REGISTRY}")
