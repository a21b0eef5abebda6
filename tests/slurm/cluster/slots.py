"""Slots for concurrent clusters: each number gives unique node names, network names, addresses and ports.

A claim is a directory under /run, made under a lock. The next claimer tears down the claims of dead owners (killed test
sessions), so a crash never blocks a slot.
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
    """Names, addresses and ports that no other slot uses."""

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
        """Return the name of node `index`, counted from 1."""
        return f"{self.letter}{index}"

    def ip(self, index: int) -> str:
        return f"10.77.{self.number}.{index}"

    def namespace(self, node: str) -> str:
        return f"slrl-{node}"

    @property
    def root(self) -> Path | None:
        """Directory of the cluster that holds this slot."""
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
        """Return the content written by `claim`; None if the claimer died before it wrote it."""
        try:
            content: dict[str, Any] = json.loads((self.directory / "claim.json").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return content


def claimed_slots() -> list[Slot]:
    return [slot for number in range(len(LETTERS)) if (slot := Slot(number)).directory.is_dir()]


@contextlib.contextmanager
def registry_lock() -> Iterator[None]:
    """Lock the registry of slots on this machine."""
    REGISTRY.mkdir(exist_ok=True)
    with (REGISTRY / "lock").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def claim(root: Path) -> Slot:
    """Take the first free slot. The caller must hold `registry_lock`."""
    for number in range(len(LETTERS)):
        slot = Slot(number)
        if not slot.directory.exists():
            owner = os.getpid(), start_time(os.getpid())
            slot.directory.mkdir()
            (slot.directory / "claim.json").write_text(json.dumps({"root": str(root), "owner": owner}))
            return slot
    raise ClusterError(f"all {len(LETTERS)} places for test clusters are taken; see {REGISTRY}")
