"""Wait until all nodes of the run have joined Ray with their GPUs, before a trainer starts there.

    python -m slurm_rl.node.wait_for_ray_nodes --run-dir <run> --timeout 300

Ray answers as soon as the head's GCS is up, before other nodes have joined; a trainer that counts GPUs then (verl does)
fails. Needs `ray` and the standard library.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import Popen

from slurm_rl.errors import BringUpError, SlurmRLError
from slurm_rl.node.processes import start_child
from slurm_rl.node.ray_cluster import node_resource
from slurm_rl.plan.job import HOSTS_VARIABLE, JobPlan
from slurm_rl.run_dir.run_dir import RunDir, read_json

POLL_S = 0.2


def find_missing(plan: JobPlan, resources: Mapping[str, float]) -> list[str]:
    """Return the nodes, or else the number of GPUs, that the cluster lacks.

    Args:
        resources: Ray's resources of the whole cluster.
    """
    missing = [_node_name(rank) for rank in range(plan.num_nodes) if node_resource(rank) not in resources]
    wanted, present = sum(plan.gpus_by_node), int(resources.get("GPU", 0))
    return missing or ([f"{wanted - present} of {wanted} GPUs"] if present < wanted else [])


def wait_for_nodes(plan: JobPlan, deadline: float, check: Callable[[], None]) -> None:
    """Wait for all nodes of the cluster that this process is connected to.

    Args:
        deadline: by time.monotonic().
        check: raises if waiting is pointless.

    Raises:
        BringUpError: names the missing nodes.
    """
    import ray

    while missing := find_missing(plan, ray.cluster_resources()):
        check()
        if time.monotonic() > deadline:
            raise BringUpError(
                f"all {plan.num_nodes} nodes must join Ray with their GPUs before job.start_timeout_s",
                seen="missing: " + ", ".join(missing),
                action="read logs/node-<rank>.log and logs/ray-<rank>.log of the attempt",
            )
        time.sleep(POLL_S)


def _node_name(rank: int) -> str:
    hosts = os.environ.get(HOSTS_VARIABLE, "").split(",")
    return f"{hosts[rank]} (rank {rank})" if rank < len(hosts) and hosts[rank] else f"rank {rank}"


def start_waiting(run: RunDir, plan: JobPlan, env: Mapping[str, str], log: Path, timeout_s: float) -> Popen[bytes]:
    """Start the wait as a process, so that its connection to Ray ends; `log` gets the error."""
    argv = [plan.python, "-m", __name__, "--run-dir", str(run.path), "--timeout", f"{timeout_s:g}"]
    return start_child(argv, env, log, signal.SIGKILL)


def main() -> int:
    import ray

    parser = argparse.ArgumentParser(description="Wait until all nodes of a run have joined its Ray cluster.")
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--timeout", required=True, type=float)
    args = parser.parse_args()
    plan = JobPlan.from_json(read_json(RunDir(args.run_dir).plan))
    deadline = time.monotonic() + args.timeout
    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="WARNING")
    try:
        wait_for_nodes(plan, deadline, lambda: None)
    except SlurmRLError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
