"""A multi-node Slurm cluster on one machine, for tests and experiments.

It runs Debian's unmodified slurmctld and slurmd. Each node is a set of Linux namespaces with its own IP, hostname,
processes, /tmp, /run and /dev/shm. It needs root and touches nothing outside its directory, network names and cgroups.

    with Cluster(Path("/tmp/demo"), num_nodes=2) as cluster:
        cluster.run(["srun", "-N2", "hostname"])
"""

from tests.slurm.cluster.cluster import Cluster
from tests.slurm.cluster.leftovers import Leftovers
from tests.slurm.cluster.packages import ClusterError, ensure_packages, is_possible, is_required, slurm_version
from tests.slurm.cluster.reset import reset
from tests.slurm.cluster.waiting import wait_until

__all__ = [
    "Cluster",
    "ClusterError",
    "Leftovers",
    "ensure_packages",
    "is_possible",
    "is_required",
    "reset",
    "slurm_version",
    "wait_until",
]
