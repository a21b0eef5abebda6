"""The last node monitors the controller's node: no other process of the run can see its loss. Standard library only.

With that node the controller, srun and the head are lost. Slurm restarts the job only after SlurmdTimeout (300 s by
default), even if a user requeues it earlier, so the monitor only logs an event.
"""

from __future__ import annotations

import time

from slurm_rl.node.rank_discovery import NodeRole
from slurm_rl.node.rendezvous import HeadRecord, is_port_open
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, read_json
from slurm_rl.run_dir.run_lock import BEAT_S, read_lock

SILENCE_S = 1.5 * BEAT_S
"""A heartbeat may already be BEAT_S old when the node is lost."""
_CHECK_S = 2.0


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
        if lease is None or lease.is_ended:
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
