"""Work of the controller while an attempt runs: forward a stop, notice a dead node, keep the time limit.

`--signal` cannot be changed once a job is queued, so Slurm signals with the planned lead. A run that has measured
longer saves is stopped earlier by the controller.
"""

import math
import signal
import time
from dataclasses import asdict

from slurm_rl.launch.controller.allocation import Allocation, Nodes
from slurm_rl.launch.controller.attempts import AttemptEnd
from slurm_rl.launch.controller.ends import find_task_errors, read_record
from slurm_rl.launch.hooks import learn_save_times, open_checkpoint_evals
from slurm_rl.node.rendezvous import comes_true
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, write_json
from slurm_rl.run_dir.save_times import Measured

# Agents that have not started by then (the image is being unpacked) have no trainer that could save.
_LISTEN_S = 15.0
_END_S = 30.0
_ASK_S = 60.0
"""Interval of queries to the scheduler."""


class AttemptWatch:
    """Watches one attempt from the controller."""

    def __init__(self, run: RunDir, plan: JobPlan, attempt: AttemptDir, nodes: Nodes, allocation: Allocation) -> None:
        self.run_dir, self.attempt, self.nodes, self.num_agents = run, attempt, nodes, allocation.num_agents
        self.srun_log_size = 0
        self.forwarded = False
        self.stopped_at: float | None = None
        self.late_at = time.monotonic() + plan.limits.start_timeout_s
        self.is_late = False
        """True if agents missed the start deadline and the attempt was ended."""
        self.evals = open_checkpoint_evals(run) if plan.evaluates_checkpoints else None

    def look(self, *, is_stopped: bool) -> None:
        self._look_for_dead_nodes()
        if self.evals is not None and not is_stopped:
            self.evals.look()
        if is_stopped and not self.forwarded:
            self._forward_stop()
        elif time.monotonic() > self.late_at:
            self.late_at = math.inf
            if not self._agents_listen():
                self.is_late = True
                self.nodes.terminate()

    def finish(self, end: AttemptEnd) -> None:
        """Let the last checkpoint of a finished run be evaluated."""
        if self.evals is not None and end.outcome == "finished":
            self.evals.finish()

    def _forward_stop(self) -> None:
        """Send SIGUSR2 to the agents: the head's trainer saves, the others stay until it has."""
        self.stopped_at = self.stopped_at or time.monotonic()
        if self._agents_listen():
            self.nodes.send_signal(signal.SIGUSR2)
        elif time.monotonic() > self.stopped_at + _LISTEN_S:
            self.nodes.terminate()
        else:
            return
        self.forwarded = True

    def _agents_listen(self) -> bool:
        """Return True if all agents have written their record, and so have signal handlers."""
        names = {path.name for path in self.attempt.path.iterdir()}
        return all(self.attempt.node(rank).name in names for rank in range(self.num_agents))

    def _look_for_dead_nodes(self) -> None:
        """Write abort.json if an agent died before the head's end: the others would wait until Slurm kills them."""
        log = self.attempt.log("srun")
        size = log.stat().st_size if log.is_file() else 0
        if size == self.srun_log_size or self.attempt.abort.is_file():
            return
        self.srun_log_size = size
        dead = find_task_errors(self.attempt)
        if dead and read_record(self.attempt, 0).get("state") not in ("ending", "ended"):
            write_json(self.attempt.abort, {"cause": dead[0]})
            append_event(self.run_dir, "node/died", attempt=self.attempt.number, cause=dead[0])


def end_nodes(nodes: Nodes) -> None:
    """End agents without a save; kill them after a timeout."""
    nodes.terminate()
    if not comes_true(lambda: nodes.poll() is not None, _END_S):
        nodes.send_signal(signal.SIGKILL)


class LimitWatch:
    """Stops an attempt before the time limit, with a lead from measured saves."""

    def __init__(self, run: RunDir, plan: JobPlan, allocation: Allocation) -> None:
        self.run_dir, self.limits, self.allocation = run, plan.limits, allocation
        self.lead_s: float = plan.limits.checkpoint_lead_s
        self.measured: Measured | None = None
        self._ends_at: float | None = None
        self._asked = -math.inf
        self._learned = -math.inf

    def look(self) -> str | None:
        """Return the reason to stop now; None while there is time. Cheap."""
        now = time.monotonic()
        if self.limits.learns_lead and now >= self._learned + _ASK_S:
            self._learned = now
            self.learn()
        if not self._is_ours():
            return None
        if now >= self._asked + _ASK_S:
            self._ask(now)
        if not self._is_time():
            return None
        # An operator may have extended the limit in the last minute.
        self._ask(now)
        if not self._is_time():
            return None
        measured = asdict(self.measured) if self.measured and self.measured.lead_s else None
        append_event(self.run_dir, "job/stop_raised", lead_s=self.lead_s, measured=measured)
        return "job.time_limit is near"

    def learn(self) -> None:
        """Set the lead from the measured saves, at least the planned one."""
        self.measured = learn_save_times(self.run_dir)
        self.lead_s = max(self.limits.checkpoint_lead_s, self.measured.lead_s or 0)

    def _is_ours(self) -> bool:
        """Return True if the scheduler sends no signal, or would send it too late."""
        return not self.allocation.signals_limit or self.lead_s > self.limits.checkpoint_lead_s

    def _ask(self, now: float) -> None:
        self._asked = now
        found = self.allocation.ends_at()
        self._ends_at = self._ends_at if found is None else found

    def _is_time(self) -> bool:
        return self._ends_at is not None and time.time() >= self._ends_at - self.lead_s
