"""The last node's look at the controller's node, whose loss nobody else of the run can see. Standard library alone.

When that node is gone, so are the controller, srun and the head; the other nodes' agents wait. Slurm gives a node up
after SlurmdTimeout (300 s by default), and starts a job again only once it has, also one that a user requeues before.
So this only says what has happened, for `status` and for whoever reads the events.
"""

from __future__ import annotations

import time

from slurm_rl.node.discovery import NodeRole
from slurm_rl.node.rendezvous import HeadRecord, is_port_open
from slurm_rl.run_dir.lease import BEAT_S, read_standing
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, read_json

SILENCE_S = 1.5 * BEAT_S
"""A beat that has not come for so long is missing: it may have been as old as BEAT_S when the node was lost."""
_LOOK_S = 2.0


class ControllerWatch:
    """Of one attempt, by one of its agents: the cost does not grow with the number of nodes."""

    def __init__(self, run: RunDir, attempt: AttemptDir, role: NodeRole) -> None:
        self.run_dir, self.attempt = run, attempt
        self.is_watcher = role.rank > 0 and role.rank == role.num_nodes - 1
        self._look_at = self._heard_at = 0.0
        self._beat = (0, 0)
        self._is_told = False

    def look(self, now: float | None = None) -> None:
        """Cheap between two looks; call it in the agent's loop."""
        now = time.monotonic() if now is None else now
        if not self.is_watcher or now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        seen = read_standing(self.run_dir.lease)
        if seen is None or seen.is_ended:
            return
        if (seen.epoch, seen.beat) != self._beat:
            self._beat, self._heard_at = (seen.epoch, seen.beat), now
            if self._is_told:
                self._is_told = False
                append_event(self.run_dir, "controller/heard", attempt=self.attempt.number)
        elif not self._is_told and now - self._heard_at >= SILENCE_S and not self._head_answers():
            self._is_told = True
            host = seen.holder.host if seen.holder else "unknown"
            seconds = round(now - self._heard_at, 1)
            append_event(self.run_dir, "controller/silent", attempt=self.attempt.number, host=host, seconds=seconds)

    def _head_answers(self) -> bool:
        """A file system may show a beat late, or the controller may be stopped: then the head still listens."""
        if not self.attempt.head.is_file():
            return True  # not brought up yet: job.start_timeout_s holds
        head = HeadRecord(**read_json(self.attempt.head))
        return is_port_open(head.ip, head.port)
