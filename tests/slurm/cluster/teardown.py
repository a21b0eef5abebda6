"""Tear down a cluster from its claim, so that any process can do it."""

import subprocess

from tests.slurm.cluster.cgroups import remove_cgroups
from tests.slurm.cluster.daemons import Daemons
from tests.slurm.cluster.network import remove_network
from tests.slurm.cluster.slots import Slot, claimed_slots

CENTRAL = ("slurmctld", "slurmdbd", "mariadbd", "munged")
# Entries of the root that are removed; logs and unknown files remain.
MADE = ("state", "spool", "nodes", "munge", "dev", "db", "db.sock", "hosts", "resolv.conf", "slurmdbd.conf")
CONFIG = ("slurm.conf", "gres.conf", "cgroup.conf", "plugstack.conf")


def tear_down(slot: Slot) -> None:
    """Stop the recorded processes, then remove network, cgroups and files. Idempotent."""
    if not slot.directory.is_dir():
        return
    daemons = Daemons(slot.directory)
    names = daemons.names()
    nodes = [name for name in names if name not in CENTRAL]
    for name in nodes:
        daemons.stop(name, kill=True)
    for name in nodes:
        remove_cgroups(name)
    # slurmctld first: it saves its state through munge and slurmdbd.
    for name in CENTRAL:
        daemons.stop(name, kill=name == "slurmctld")
    remove_network(slot)
    _remove_files(slot)
    subprocess.run(["rm", "-rf", str(slot.directory)], check=True)


def remove_stale() -> None:
    """Tear down the clusters of dead owners. The caller must hold the registry's lock."""
    for slot in claimed_slots():
        if slot.is_stale:
            tear_down(slot)


def _remove_files(slot: Slot) -> None:
    if (root := slot.root) is not None:
        paths = [str(root / name) for name in (*MADE, *CONFIG)]
        # --one-file-system: never empty a folder that is still mounted below.
        subprocess.run(["rm", "-rf", "--one-file-system", *paths], check=True)
