"""Taking a cluster down from its claim alone, so that any process can do it."""

import subprocess

from tests.slurm.cluster.cgroups import remove_cgroups
from tests.slurm.cluster.daemons import Daemons
from tests.slurm.cluster.network import remove_network
from tests.slurm.cluster.slots import Slot, claimed_slots

CENTRAL = ("slurmctld", "slurmdbd", "mariadbd", "munged")
# What is removed of the root, by name: the logs stay, and so does anything that is not ours.
MADE = ("state", "spool", "nodes", "munge", "dev", "db", "db.sock", "hosts", "slurmdbd.conf")
CONFIG = ("slurm.conf", "gres.conf", "cgroup.conf", "plugstack.conf")


def tear_down(slot: Slot) -> None:
    """End the recorded processes, then remove network, cgroups and files; harmless when done already."""
    if not slot.directory.is_dir():
        return
    daemons = Daemons(slot.directory)
    names = daemons.names()
    nodes = [name for name in names if name not in CENTRAL]
    for name in nodes:
        daemons.stop(name, kill=True)
    for name in nodes:
        remove_cgroups(name)
    # slurmctld first: it saves its state through munge and to slurmdbd.
    for name in CENTRAL:
        daemons.stop(name, kill=name == "slurmctld")
    remove_network(slot)
    _remove_files(slot)
    subprocess.run(["rm", "-rf", str(slot.directory)], check=True)


def remove_stale() -> None:
    """Tear down every cluster whose owner is dead; call under the registry's lock."""
    for slot in claimed_slots():
        if slot.is_stale:
            tear_down(slot)


def _remove_files(slot: Slot) -> None:
    if (root := slot.root) is not None:
        mine = [str(root / name) for name in (*MADE, *CONFIG)]
        # One file system: a folder that is still mounted somewhere below must not be emptied.
        subprocess.run(["rm", "-rf", "--one-file-system", *mine], check=True)
