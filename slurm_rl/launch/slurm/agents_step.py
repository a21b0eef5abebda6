"""The srun of an attempt's agents, as the controller watches it."""

from __future__ import annotations

import signal
import subprocess
import time

from slurm_rl.launch.controller.agents import find_dirty
from slurm_rl.launch.controller.ends import read_record
from slurm_rl.run_dir.run_dir import AttemptDir

_PATIENCE_S = 10.0
"""Agents that leave for one cause are through within seconds of each other."""
_LOOK_S = 1.0


class AgentsStep:
    """`Nodes` of a Slurm job.

    When the head's agent has ended, so do the others. One whose node is gone never says so, and srun waits for it for
    longer than KillWait (30 s by default): then srun is ended, and what is left of the agents is cleaned as ever.
    """

    def __init__(
        self, srun: subprocess.Popen[bytes], attempt: AttemptDir, num_nodes: int, patience_s: float = _PATIENCE_S
    ) -> None:
        self.srun, self.attempt, self.num_nodes, self.patience_s = srun, attempt, num_nodes, patience_s
        self._look_at = 0.0
        self._ended_at: float | None = None

    @property
    def returncode(self) -> int | None:
        return self.srun.returncode

    def poll(self) -> int | None:
        status = self.srun.poll()
        if status is None and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + min(_LOOK_S, self.patience_s)
            self._look_for_the_last()
        return status

    def send_signal(self, sig: int, /) -> None:
        self.srun.send_signal(sig)

    def terminate(self) -> None:
        self.srun.terminate()

    def _look_for_the_last(self) -> None:
        if read_record(self.attempt, 0).get("state") != "ended" or not find_dirty(self.attempt, self.num_nodes):
            return
        self._ended_at = self._ended_at or time.monotonic()
        if time.monotonic() > self._ended_at + self.patience_s:
            self.srun.send_signal(signal.SIGKILL)
