"""The node agent: one process per node and attempt, which starts Ray and on the head the trainer, or torchrun.

    python -m slurm_rl.node.agent --run-dir <run> --attempt <n>

It needs only the standard library (and `ray` in the interpreter of the plan), so it runs in any image with Python. All
processes that it starts end before it does: they carry the attempt's mark in their environment.

After SIGUSR2, SIGINT or SIGHUP the head asks the trainer to save and leave, and the other nodes keep Ray up until it
has; under torchrun each agent signals its own ranks. After SIGTERM the same happens before Slurm's SIGKILL.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from slurm_rl.errors import SlurmRLError
from slurm_rl.node.attempt import Leaving, attempt_parser, open_attempt
from slurm_rl.node.environment import child_environment
from slurm_rl.node.limits import find_low_limits, raise_limits
from slurm_rl.node.node_state import NodeState, check_own_image
from slurm_rl.node.ports import choose_ports
from slurm_rl.node.private_folder import make_private_folder, remove_tmp_dir, remove_tmp_dirs
from slurm_rl.node.processes import become_subreaper, end_marked, start_child, write_into
from slurm_rl.node.rank_discovery import Flags, discover_role
from slurm_rl.node.ray_cluster import keep_ray_logs
from slurm_rl.node.ray_node import RayNode
from slurm_rl.node.torchrun import run_torchrun
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.step import copy_argv
from slurm_rl.run_dir.io_errors import explain_io_error
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, read_json

_log = logging.getLogger(__name__)
_GRACE_S = 2.0
"""The trainer has ended before; other processes have nothing to save."""
_SHORT_GRACE_S = 1.0
"""After SIGTERM: a temp dir that is not removed before Slurm's SIGKILL stays."""
MOST_S = 3600.0
"""Time for a large model and a slow bucket."""
MOST_STOPPED_S = 60.0
"""Time after a stop, when the allocation ends soon."""


def run_node(node: NodeState) -> int:
    """Run the node to its end; return the trainer's exit status on the head, 0 or 1 elsewhere."""
    become_subreaper()
    raise_limits()
    if low := find_low_limits(Path("/proc/self/limits").read_text(encoding="ascii")):
        _log.warning("hard limits of this node are low: %s; see `ulimit -H -a` there", ", ".join(low))
    for signum in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, node.on_signal)
    node.write_record()  # from here on the controller signals this process
    number = node.attempt.number
    append_event(node.run_dir, "node/started", attempt=number, rank=node.role.rank, host=node.host)
    status = 1
    try:
        status = _start(node)
    except Leaving as reason:
        _log.warning("leaving: %s", reason)
    except (SlurmRLError, OSError) as error:
        cause = str(error) if isinstance(error, SlurmRLError) else explain_io_error(error, node.run_dir.path)
        if cause is None:
            raise
        node.record |= {"error": cause, "exit_code": getattr(error, "exit_code", 1)}
        _log.error("%s: %s", type(error).__name__, cause)
        append_event(node.run_dir, "node/failed", attempt=number, host=node.host, cause=cause)
    finally:
        _finish(node, status)
    return status


def _start(node: NodeState) -> int:
    deadline = time.monotonic() + node.plan.limits.start_timeout_s
    plan, number, role = node.plan, node.attempt.number, node.role
    node.versions = check_own_image(plan)
    ports = choose_ports(role.job_key, number)
    remove_tmp_dirs(plan, before=number)
    make_private_folder(node.tmp_dir)
    env = child_environment(node.run_dir, plan, number, role, ports, node.mark, node.tmp_dir)
    if plan.torchrun is not None:
        return run_torchrun(node, ports, env, deadline, plan.torchrun.ranks_per_node)
    return RayNode(node, ports, env, deadline).run()


def _finish(node: NodeState, status: int) -> None:
    """End all processes of the attempt on this node, remove its temp dir, and copy artifacts from the head."""
    if status:
        node.oom_kills.note(node.attempt, node.host)
    node.write_record(state="ending")
    grace_s = _GRACE_S if node.must_leave_at is None else _SHORT_GRACE_S
    end_marked(node.mark, grace_s, own_children=[child.pid for child in (node.driver, node.ray) if child])
    if status and not node.stop_signal:
        keep_ray_logs(node.tmp_dir, node.attempt.logs / f"ray-{node.role.rank}")
    remove_tmp_dir(node.tmp_dir)
    if node.role.is_head:
        most_s = MOST_STOPPED_S if node.stop_signal else MOST_S
        if node.must_leave_at is not None:
            most_s = min(MOST_STOPPED_S, node.must_leave_at - time.monotonic())
        copy_out(node.run_dir, node.plan, node.attempt, most_s)
    node.write_record(state="ended", status=status)


def main() -> int:
    parser = attempt_parser("One node of one attempt of a run.")
    # Only for launchers without srun; its tasks have these in the environment.
    parser.add_argument("--rank", type=int)
    parser.add_argument("--num-nodes", type=int)
    parser.add_argument("--job-key")
    args = parser.parse_args()
    run, attempt = open_attempt(args)
    plan = JobPlan.from_json(read_json(run.plan))
    role = discover_role(os.environ, Flags(args.rank, args.num_nodes, job_key=args.job_key))
    attempt.logs.mkdir(parents=True, exist_ok=True)
    if args.rank is None:
        write_into(attempt.log(f"node-{role.rank}"))
    logging.basicConfig(format="slurm_rl: %(message)s", level=logging.INFO)
    return run_node(NodeState(run, plan, attempt, role))


def copy_out(run: RunDir, plan: JobPlan, attempt: AttemptDir, most_s: float) -> None:
    """Copy logs and export, if the run has a URL for copies. A failure is logged and does not fail the run."""
    if plan.copies_to is None:
        return
    try:
        child = start_child(copy_argv(plan, attempt.number), os.environ, attempt.log("final-copy"), signal.SIGKILL)
    except OSError as error:
        _log.error("%s could not copy logs and export: %s", plan.python, error.strerror)
        return
    try:
        child.wait(max(most_s, 0.0))
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        # The controller may have time for another copy.
        cause = f"not done within {most_s:.0f} s"
        append_event(run, "run/copy_failed", attempt=attempt.number, cause=cause, is_late=True)


if __name__ == "__main__":
    sys.exit(main())
