"""Making a cluster as good as new between tests, whatever the last one left."""

from __future__ import annotations

from tests.slurm.cluster.cluster import Cluster
from tests.slurm.cluster.waiting import wait_until

HEALTHY = ("idle", "mixed", "allocated", "completing")


def reset(cluster: Cluster) -> None:
    """Controller up, nodes on and in service, no jobs; at once when all that holds already."""
    if not cluster.is_controller_up:
        cluster.stop_controller()
        cluster.start_controller()
    if jobs := cluster.run(["squeue", "-h", "-o", "%A"]).stdout.split():
        cluster.run(["scancel", *sorted(set(jobs))])
    for node in cluster.nodes:
        if not cluster.is_on(node):
            cluster.boot(node)
        elif cluster.node_state(node) not in HEALTHY:
            cluster.run(["scontrol", "update", f"nodename={node}", "state=resume"])
    wait_until(lambda: is_idle(cluster), "every node to be idle", timeout_s=60)


def is_idle(cluster: Cluster) -> bool:
    return (
        all(cluster.node_state(node) == "idle" for node in cluster.nodes) and not cluster.run(["squeue", "-h"]).stdout
    )
