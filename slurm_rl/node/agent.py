"""The node agent: one process a node and attempt. It starts Ray here, on the head also the trainer; or torchrun.

    python -m slurm_rl.node.agent --run-dir <run> --attempt <n>

It needs the standard library alone (and `ray` in the interpreter that the plan names), so it runs in
any image that has Python. Whatever way it ends, every process it started ends before it: they carry
the attempt's mark in their environment.

SIGUSR2 (and SIGINT, SIGHUP): the head tells the trainer to save and leave, the others keep their Ray up
until it has. Under torchrun every agent tells its own ranks. SIGTERM: the same, and Slurm's SIGKILL
follows; who has nobody to wait for leaves at once, and everyone in time to clean up before the SIGKILL.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from slurm_rl.errors import SlurmRLError
from slurm_rl.node.attempt import Leaving, attempt_parser, open_attempt, time_to_leave
from slurm_rl.node.discovery import NodeRole, discover_role
from slurm_rl.node.environment import child_environment
from slurm_rl.node.final_copy import MOST_S, MOST_STOPPED_S, copy_out
from slurm_rl.node.hang import HangWatch
from slurm_rl.node.limits import find_low_limits, raise_limits
from slurm_rl.node.memory import OomKills
from slurm_rl.node.own_image import check_own_image, check_same_image
from slurm_rl.node.ports import choose_ports
from slurm_rl.node.private_folder import make_private_folder
from slurm_rl.node.processes import (
    attempt_mark,
    become_subreaper,
    end_marked,
    write_into,
)
from slurm_rl.node.ray_cluster import explain_ray_end, keep_ray_logs
from slurm_rl.node.ray_share import RayShare
from slurm_rl.node.rendezvous import (
    HeadRecord,
    own_address,
    wait_for_head,
)
from slurm_rl.node.silence import ControllerWatch
from slurm_rl.node.sources import Flags
from slurm_rl.node.tmp_dir import choose_tmp_dir, remove_tmp_dir, remove_tmp_dirs
from slurm_rl.node.torchrun_share import run_torchrun
from slurm_rl.plan.compat import Versions
from slurm_rl.plan.job import NODE_VARIABLE, JobPlan
from slurm_rl.run_dir.disk import explain_refusal, say
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, read_json, write_last

# The trainer has ended before; what Ray leaves behind has nothing to save, and its GCS takes its time.
_GRACE_S = 2.0
# After SIGTERM Slurm's SIGKILL is on its way, and a temp dir that is not removed by then stays.
_SHORT_GRACE_S = 1.0
# Between two looks whether the run is still this attempt's; the others follow the head.
_LEASE_S = 5.0


class NodeAgent:
    """One node's share of one attempt."""

    def __init__(self, run: RunDir, plan: JobPlan, attempt: AttemptDir, role: NodeRole) -> None:
        self.run_dir, self.plan, self.attempt, self.role = run, plan, attempt, role
        self.host = os.environ.get(NODE_VARIABLE) or socket.gethostname()
        self.stop_signal: int | None = None
        self.stopped_at = 0.0
        self.must_leave_at: float | None = None
        self.look_at = 0.0
        self.driver: subprocess.Popen[bytes] | None = None
        self.ray: subprocess.Popen[bytes] | None = None
        self.versions: Versions | None = None
        self.time_to_leave_s = time_to_leave(attempt)
        self.tmp_dir = choose_tmp_dir(run, plan, attempt.number)
        self.mark = attempt_mark(run, role.job_key, attempt.number, role.rank)
        beats = self.tmp_dir / "beats"
        self.hangs = HangWatch(run, plan, attempt, beats, rank=role.rank, host=self.host, mark=self.mark)
        self.silence = ControllerWatch(run, attempt, role)
        self.oom_kills = OomKills()
        self.record: dict[str, Any] = {"host": self.host, "pid": os.getpid(), "rank": role.rank, "state": "starting"}

    def main(self) -> int:
        """Run the node to its end; the exit status is the trainer's on the head, 0 or 1 elsewhere."""
        become_subreaper()
        raise_limits()
        if low := find_low_limits(Path("/proc/self/limits").read_text(encoding="ascii")):
            say(f"warning: hard limits of this node are low: {', '.join(low)}; see `ulimit -H -a` there")
        for signum in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._on_signal)
        self.write_record()  # the controller signals an agent only once it has this
        append_event(self.run_dir, "node/started", attempt=self.attempt.number, rank=self.role.rank, host=self.host)
        status = 1
        try:
            status = self._run()
        except Leaving as why:
            say(f"leaving: {why}")
        except (SlurmRLError, OSError) as error:
            cause = str(error) if isinstance(error, SlurmRLError) else explain_refusal(error, self.run_dir.path)
            if cause is None:
                raise
            self.record |= {"error": cause, "exit_code": getattr(error, "exit_code", 1)}
            say(f"{type(error).__name__}: {cause}")
            append_event(self.run_dir, "node/failed", attempt=self.attempt.number, host=self.host, cause=cause)
        finally:
            if status:
                self.oom_kills.note(self.attempt, self.host)
            self._clean_up(keep_logs=not (status == 0 or self.stop_signal))
            if self.role.is_head:
                copy_out(self.run_dir, self.plan, self.attempt, self._time_to_copy())
            self.write_record(state="ended", status=status)
        return status

    def _run(self) -> int:
        deadline = time.monotonic() + self.plan.limits.start_timeout_s
        self.versions = check_own_image(self.plan)
        ports = choose_ports(self.role.job_key, self.attempt.number)
        remove_tmp_dirs(self.plan, before=self.attempt.number)
        make_private_folder(self.tmp_dir)
        env = child_environment(self.run_dir, self.plan, self.attempt.number, self.role, ports, self.mark, self.tmp_dir)
        if self.plan.torchrun is not None:
            return run_torchrun(self, ports, env, deadline, self.plan.torchrun.ranks_per_node)
        return RayShare(self, ports, env, deadline).run()

    def meet_head(self, deadline: float) -> HeadRecord:
        head = wait_for_head(self.attempt, deadline, self.bring_up_is_over)
        check_same_image(head, self.host, self.versions)
        return head

    def head_ip(self) -> str:
        # As the others reach this node: the name of the last of them, or loopback where there is no other.
        return own_address(self.role.hosts[-1] if self.role.num_nodes > 1 else "localhost")

    def check_ray(self, where: str) -> None:
        """Raise BringUpError or TrainingError with what Ray said last, when it has ended."""
        if self.ray is not None and self.ray.poll() is not None:
            # The trainer would notice in its own time; a dead cluster is certain now.
            raise explain_ray_end(self.plan, self.attempt.log(f"ray-{self.role.rank}"), self.ray.returncode, where)

    def _time_to_copy(self) -> float:
        if self.must_leave_at is not None:
            return min(MOST_STOPPED_S, self.must_leave_at - time.monotonic())
        return MOST_STOPPED_S if self.stop_signal else MOST_S

    def check_terminated(self) -> None:
        """After SIGTERM: leave before SIGKILL, and when the controller says that a node died: then nobody saves.

        At any time when another controller has the run: the own one may be cut off. And on the head when a node died,
        since Slurm's SIGTERM is lost on a task that has not been launched yet.
        """
        if self.role.is_head and time.monotonic() > self.look_at:
            self.look_at = time.monotonic() + _LEASE_S
            self.run_dir.require_ours()
            self._leave_with_the_others()
        if self.must_leave_at is None:
            return
        if time.monotonic() > self.must_leave_at:
            raise Leaving("the trainer must save and leave before Slurm's SIGKILL", seen="it has not")
        self._leave_with_the_others()

    def _leave_with_the_others(self) -> None:
        # Listing, not opening: NFS may remember for a minute that a file it was asked for is absent.
        if self.attempt.abort in set(self.attempt.path.iterdir()):
            raise Leaving("another node died", seen=read_json(self.attempt.abort)["cause"])

    def check_beats(self) -> None:
        """Raise TrainingError when a rank hangs; not of those that were told to leave, which have other deadlines."""
        self.oom_kills.look()
        self.silence.look()
        if self.stop_signal is None:
            self.hangs.look()

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGTERM and self.must_leave_at is None:
            self.must_leave_at = time.monotonic() + self.time_to_leave_s
        self.stop_signal = signum
        self.stopped_at = self.stopped_at or time.monotonic()

    def bring_up_is_over(self) -> bool:
        self.check_ray("this node")
        return self.stop_signal is not None

    def head_has_ended(self) -> bool:
        path = self.attempt.node(0)
        return path.is_file() and read_json(path)["state"] in ("ending", "ended")

    def _clean_up(self, *, keep_logs: bool) -> None:
        self.write_record(state="ending")
        grace_s = _GRACE_S if self.must_leave_at is None else _SHORT_GRACE_S
        end_marked(self.mark, grace_s, own_children=[p.pid for p in (self.driver, self.ray) if p])
        if keep_logs:
            keep_ray_logs(self.tmp_dir, self.attempt.logs / f"ray-{self.role.rank}")
        remove_tmp_dir(self.tmp_dir)

    def write_record(self, **fields: Any) -> None:
        self.record |= fields
        self.record.setdefault("phases", {})[self.record["state"]] = round(time.time(), 3)
        write_last(self.run_dir, self.attempt.node(self.role.rank), self.record)


def main() -> int:
    parser = attempt_parser("One node of one attempt of a run.")
    # Of launchers other than srun, whose tasks find these in the environment.
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
    return NodeAgent(run, plan, attempt, role).main()


if __name__ == "__main__":
    sys.exit(main())
