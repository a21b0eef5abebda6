"""State of one node during one attempt, shared by the agent and its Ray or torchrun part. Standard library only.

The agent checks the image, and not an earlier step, because some runtimes unpack an image again for every step.

The last node monitors the controller's node, since the loss of that node ends the controller, srun and the head. Slurm
restarts the job only after SlurmdTimeout (300 s by default), so the monitor only logs an event.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from types import FrameType
from typing import Any

from slurm_rl.errors import ConfigError
from slurm_rl.node.attempt import POLL_S, Leaving, interval_s, time_to_leave
from slurm_rl.node.hang_monitor import HangMonitor
from slurm_rl.node.image_report import parse_report
from slurm_rl.node.oom import OomKills
from slurm_rl.node.private_folder import choose_tmp_dir
from slurm_rl.node.processes import attempt_mark
from slurm_rl.node.rank_discovery import NodeRole
from slurm_rl.node.ray_cluster import explain_ray_end
from slurm_rl.node.rendezvous import HeadRecord, is_port_open, own_address, wait_for_head
from slurm_rl.plan.compat import Versions, check_versions, find_differences
from slurm_rl.plan.job import NODE_VARIABLE, JobPlan
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, read_json, write_last
from slurm_rl.run_dir.run_lock import BEAT_S, read_lock

_LEASE_S = 5.0
"""Interval at which the head checks that the run still belongs to this attempt."""
_DEADLINE_S = 120.0
SILENCE_S = 1.5 * BEAT_S
"""A heartbeat may already be BEAT_S old when the node is lost."""
_CHECK_S = 2.0


class NodeState:
    """Signals, deadlines, monitors and the record of one node."""

    def __init__(self, run: RunDir, plan: JobPlan, attempt: AttemptDir, role: NodeRole) -> None:
        self.run_dir, self.plan, self.attempt, self.role = run, plan, attempt, role
        self.host = os.environ.get(NODE_VARIABLE) or socket.gethostname()
        self.stop_signal: int | None = None
        self.stopped_at = 0.0
        """time.monotonic() of the first signal; 0 before."""
        self.must_leave_at: float | None = None
        """time.monotonic() before Slurm's SIGKILL, after a SIGTERM."""
        self.driver: subprocess.Popen[bytes] | None = None
        self.ray: subprocess.Popen[bytes] | None = None
        self.versions: Versions | None = None
        self.tmp_dir = choose_tmp_dir(run, plan, attempt.number)
        self.mark = attempt_mark(run, role.job_key, attempt.number, role.rank)
        self.oom_kills = OomKills()
        self.record: dict[str, Any] = {"host": self.host, "pid": os.getpid(), "rank": role.rank, "state": "starting"}
        folder = self.tmp_dir / "heartbeats"
        self._hangs = HangMonitor(run, plan, attempt, folder, rank=role.rank, host=self.host, mark=self.mark)
        self._controller = ControllerMonitor(run, attempt, role)
        self._time_to_leave_s = time_to_leave(attempt)
        self._check_lease_at = self._ask_head_at = self._look_at = 0.0
        self._head: HeadRecord | None = None

    def on_signal(self, signum: int, frame: FrameType | None) -> None:
        """Handle a stop signal; SIGTERM also starts the deadline for leaving."""
        if signum == signal.SIGTERM and self.must_leave_at is None:
            self.must_leave_at = time.monotonic() + self._time_to_leave_s
        self.stop_signal = signum
        self.stopped_at = self.stopped_at or time.monotonic()

    def check(self) -> None:
        """Check lease, deadlines and heartbeats; to be called in the loop of the Ray or torchrun part.

        Raises:
            Leaving: another node died, or the time to leave is over.
            LeaseError: another controller owns the run.
            TrainingError: a rank hangs.
        """
        self._check_end()
        self.oom_kills.check()
        self._controller.check()
        if self.stop_signal is None:
            self._hangs.check()

    def _check_end(self) -> None:
        if self.role.is_head and time.monotonic() > self._check_lease_at:
            self._check_lease_at = time.monotonic() + _LEASE_S
            self.run_dir.require_ours()
            # Slurm's SIGTERM does not reach a task that has not been launched yet.
            self._leave_if_aborted()
        if self.must_leave_at is None:
            return
        if time.monotonic() > self.must_leave_at:
            raise Leaving("the trainer must save and leave before Slurm's SIGKILL", seen="it has not")
        self._leave_if_aborted()

    def _leave_if_aborted(self) -> None:
        # Listing the folder: NFS caches that a file is missing.
        if self.attempt.abort in set(self.attempt.path.iterdir()):
            raise Leaving("another node died", seen=read_json(self.attempt.abort)["cause"])

    def meet_head(self, deadline: float) -> HeadRecord:
        """Wait for the head's record and compare the images."""
        self._head = head = wait_for_head(self.attempt, deadline, self.is_bring_up_over, self.role.num_nodes)
        check_same_image(head, self.host, self.versions)
        return head

    def head_ip(self) -> str:
        """Return the address by which other nodes reach this one."""
        return own_address(self.role.hosts[-1] if self.role.num_nodes > 1 else "localhost")

    def sees_head_end(self) -> bool:
        """Return `head_has_ended`; one of many nodes looks at the disk rarely, or when the head's port is closed."""
        now, between_s = time.monotonic(), interval_s(POLL_S, self.role.num_nodes)
        if now < self._ask_head_at:
            return False
        self._ask_head_at = now + min(between_s, _CHECK_S)
        if now < self._look_at and self._head is not None and is_port_open(self._head.ip, self._head.port):
            return False
        self._look_at = now + between_s
        return self.head_has_ended()

    def head_has_ended(self) -> bool:
        path = self.attempt.node(0)
        return path.is_file() and read_json(path)["state"] in ("ending", "ended")

    def is_bring_up_over(self) -> bool:
        """Return whether the attempt is stopped; raise if Ray has ended."""
        self.check_ray("this node")
        return self.stop_signal is not None

    def check_ray(self, where: str) -> None:
        """Raise BringUpError with Ray's last message if it has ended; the trainer would notice only later."""
        if self.ray is not None and self.ray.poll() is not None:
            raise explain_ray_end(self.plan, self.attempt.log(f"ray-{self.role.rank}"), self.ray.returncode, where)

    def write_record(self, **fields: Any) -> None:
        """Update node-<rank>.json."""
        self.record |= fields
        self.record.setdefault("phases", {})[self.record["state"]] = round(time.time(), 3)
        write_last(self.run_dir, self.attempt.node(self.role.rank), self.record)


def check_own_image(plan: JobPlan) -> Versions | None:
    """Return the versions in the image; None without one. Raises ConfigError if they differ from the plan."""
    if plan.container["image"] is None:
        return None
    versions = _read_versions(plan.expected)
    check_versions(plan, versions)
    return versions


def check_same_image(head: HeadRecord, host: str, versions: Versions | None) -> None:
    """Raise ConfigError if a version differs from the head's."""
    differences = find_differences(head.host, head.versions or {}, host, versions or {})
    if differences:
        raise ConfigError("all nodes must have the same image", seen="\n  " + "\n  ".join(differences))


def _read_versions(names: Iterable[str]) -> Versions:
    # In a process of its own: RCCL starts threads when it reports its version.
    argv = [sys.executable, "-m", "slurm_rl.node.image_report", *names]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_DEADLINE_S)
        report, seen = parse_report(done.stdout), done.stderr.strip()[-500:] or "no output"
    except subprocess.TimeoutExpired:
        report, seen = None, f"no answer within {_DEADLINE_S:g} s"
    if report is None:
        raise ConfigError("the image's Python must report its versions", seen=seen)
    versions: Versions = report["versions"]
    return versions


class ControllerMonitor:
    """Monitor of one attempt, active on one node only."""

    def __init__(self, run: RunDir, attempt: AttemptDir, role: NodeRole) -> None:
        self.run_dir, self.attempt = run, attempt
        self.is_active = role.rank > 0 and role.rank == role.num_nodes - 1
        self._check_at = self._changed_at = 0.0
        self._beat = (0, 0)
        self._is_reported = False

    def check(self, now: float | None = None) -> None:
        """Check the controller's lease every few seconds; to be called in the agent's loop."""
        now = time.monotonic() if now is None else now
        if not self.is_active or now < self._check_at:
            return
        self._check_at = now + _CHECK_S
        lease = read_lock(self.run_dir.lease)
        if lease.is_ended:
            return
        if (lease.epoch, lease.beat) != self._beat:
            self._beat, self._changed_at = (lease.epoch, lease.beat), now
            if self._is_reported:
                self._is_reported = False
                append_event(self.run_dir, "controller/recovered", attempt=self.attempt.number)
        elif not self._is_reported and now - self._changed_at >= SILENCE_S and not self._head_answers():
            self._is_reported = True
            host = lease.holder.host if lease.holder else "unknown"
            seconds = round(now - self._changed_at, 1)
            append_event(self.run_dir, "controller/silent", attempt=self.attempt.number, host=host, seconds=seconds)

    def _head_answers(self) -> bool:
        """Return whether the head still listens: the file system may show a heartbeat late."""
        if not self.attempt.head.is_file():
            return True  # during bring-up job.start_timeout_s applies
        head = HeadRecord(**read_json(self.attempt.head))
        return is_port_open(head.ip, head.port)
