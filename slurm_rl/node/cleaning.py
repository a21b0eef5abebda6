"""Clean a node after an agent that was killed: processes, container, temp dir. Standard library only.

    srun ... python -m slurm_rl.node.cleaning --run-dir <run> --attempt 2 --job-key 12 --hosts n1,n2,n3 -- podman rm ...

It runs on the host, outside of any container.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from slurm_rl.node.attempt import attempt_parser
from slurm_rl.node.private_folder import remove_tmp_dirs
from slurm_rl.node.processes import attempt_mark, command_line, end_marked
from slurm_rl.plan.job import NODE_VARIABLE, JobPlan
from slurm_rl.run_dir.run_dir import RunDir, read_json

DONE = "cleaned"
_AGENT_S = 5.0
_GRACE_S = 1.0
_CLEANUP_S = 20.0


def clean_node(
    run: RunDir, plan: JobPlan, attempt: int, job_key: str, *, rank: int, cleanup: Sequence[str] = ()
) -> None:
    """End the processes of this rank's agent, run the container's `cleanup` command, and remove its files."""
    _end_agent(run, attempt, rank)
    if cleanup:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(cleanup, capture_output=True, timeout=_CLEANUP_S)
    end_marked(attempt_mark(run, job_key, attempt, rank), _GRACE_S)
    remove_tmp_dirs(plan, attempt)


def _end_agent(run: RunDir, attempt: int, rank: int) -> None:
    """Terminate an agent that outlived its srun; it cleans up by itself."""
    record = run.attempt(attempt).node(rank)
    pid = int(read_json(record)["pid"]) if record.is_file() else 0
    deadline = time.monotonic() + _AGENT_S
    while pid and _is_agent(pid, run):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
        time.sleep(0.1)


def _is_agent(pid: int, run: RunDir) -> bool:
    # The pid may belong to another process by now, or be from a container's namespace.
    words = command_line(pid)
    return b"slurm_rl.node.agent" in words and os.fsencode(run.path) in words


def main() -> int:
    parser = attempt_parser("Clean this node after an attempt.")
    parser.add_argument("--job-key", required=True)
    parser.add_argument("--hosts", required=True, help="of the attempt by rank, including this node")
    parser.add_argument("cleanup", nargs="*", help="a command that ends the container")
    args = parser.parse_args()
    run = RunDir(args.run_dir)
    host = os.environ[NODE_VARIABLE]
    rank = args.hosts.split(",").index(host)
    plan = JobPlan.from_json(read_json(run.plan))
    clean_node(run, plan, args.attempt, args.job_key, rank=rank, cleanup=args.cleanup)
    print(DONE, host, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
