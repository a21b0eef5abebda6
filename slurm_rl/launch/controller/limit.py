"""The stop before a time limit, as the controller raises it: with a lead that the run's own saves have taught it.

`--signal` cannot be changed once a job is queued, and stays as a net for the lead that was planned. So the scheduler is
asked for the job's end, which an operator may have moved, only when that net would come too late.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict

from slurm_rl.launch.controller.allocation import Allocation
from slurm_rl.launch.hooks import learn_save_times
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir, append_event

_ASK_S = 60.0


class LimitWatch:
    """Of one controller.

    Args:
        ask_s: seconds between two questions to the scheduler.
    """

    def __init__(self, run: RunDir, plan: JobPlan, allocation: Allocation, ask_s: float = _ASK_S) -> None:
        self.run_dir, self.limits, self.allocation, self.ask_s = run, plan.limits, allocation, ask_s
        self.lead_s: float = plan.limits.checkpoint_lead_s
        self._ends_at: float | None = None
        self._asked = -math.inf
        self._learned = -math.inf

    def look(self) -> str | None:
        """Why to stop now; None while there is time. Cheap: call it while waiting for the nodes."""
        now = time.monotonic()
        if self.limits.learns_lead and now >= self._learned + self.ask_s:
            self._learned = now
            self.learn()
        if not self._is_ours():
            return None
        if now >= self._asked + self.ask_s:
            self._ask(now)
        if not self._is_time():
            return None
        # Limits get extended, and an answer may be a minute old.
        self._ask(now)
        if not self._is_time():
            return None
        append_event(self.run_dir, "job/stop_raised", lead_s=self.lead_s, measured=self.measured_words())
        return "job.time_limit is near"

    def learn(self) -> None:
        """The lead of what was measured so far, never below the planned one."""
        self.measured = learn_save_times(self.run_dir)
        self.lead_s = max(self.limits.checkpoint_lead_s, self.measured.lead_s or 0)

    def measured_words(self) -> dict[str, float] | None:
        return asdict(self.measured) if self.limits.learns_lead and self.measured.lead_s else None

    def _is_ours(self) -> bool:
        """Nobody else keeps the limit, or would signal too late."""
        return not self.allocation.signals_limit or self.lead_s > self.limits.checkpoint_lead_s

    def _ask(self, now: float) -> None:
        self._asked = now
        found = self.allocation.ends_at()
        self._ends_at = self._ends_at if found is None else found

    def _is_time(self) -> bool:
        return self._ends_at is not None and time.time() >= self._ends_at - self.lead_s
