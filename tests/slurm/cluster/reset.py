from tests.slurm.cluster.cluster import Cluster
from tests.slurm.cluster.waiting import wait_until


def reset(cluster: Cluster) -> None:
    """Restore a clean cluster: controller up, nodes in service, no jobs, /tmp empty. Return at once if it is clean."""
    if not cluster.is_controller_up:
        cluster.restart_controller()
    if jobs := cluster.run(["squeue", "-h", "-o", "%A"]).stdout.split():
        cluster.run(["scancel", *sorted(set(jobs))])
    for node in cluster.nodes:
        if not cluster.is_on(node):
            cluster.boot(node)
        elif cluster.node_state(node).startswith(("down", "drain", "fail")):
            cluster.run(["scontrol", "update", f"nodename={node}", "state=resume"])
    wait_until(lambda: is_idle(cluster), "every node to be idle", timeout_s=180)
    # A job cancelled just now had no time to clean up; the next test must not see its files.
    for node in cluster.nodes:
        cluster.clear_tmp(node)


def is_idle(cluster: Cluster) -> bool:
    """Return whether there are no jobs, no CPU in use, and every node is in service."""
    rows = cluster.run(["sinfo", "-h", "-N", "-p", "main", "-o", "%T %C"]).stdout.split("\n")[:-1]
    # After a restart of the controller, an empty node may be called "mixed" for minutes; it accepts jobs nevertheless.
    in_service = [row for row in rows if row.startswith(("idle 0/", "mixed 0/"))]
    return len(in_service) == len(cluster.nodes) and not cluster.run(["squeue", "-h"]).stdout
