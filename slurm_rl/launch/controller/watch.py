"""Work of the controller while an attempt runs: forward a stop, notice a dead node, time the bring-up, keep the limit.

`--signal` cannot be changed once a job is queued, so Slurm signals with the planned lead. A run that has measured
longer saves is stopped earlier by the controller.
"""

import itertools
import math
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from slurm_rl.launch.controller.allocation import Allocation, Nodes
from slurm_rl.launch.controller.ends import find_task_errors, read_record
from slurm_rl.launch.hooks import learn_save_times
from slurm_rl.node.rendezvous import comes_true
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, write_json
from slurm_rl.run_dir.save_times import Measured

# Agents that have not started by then (the image is being unpacked) have no trainer that could save.
_LISTEN_S = 15.0
_END_S = 30.0
# Event -> the phase that it ends; the last node counts.
PHASES = {
    "attempt/started": "controller_s",
    "preflight/passed": "preflight_s",
    "node/started": "agents_s",
    "ray/head_ready": "head_s",
    "torchrun/started": "head_s",
    "ray/cluster_ready": "nodes_s",
    "trainer/started": "trainer_s",
}
_ASK_S = 60.0


class AttemptWatch:
    """Watches one attempt from the controller."""

    def __init__(self, run: RunDir, plan: JobPlan, attempt: AttemptDir, nodes: Nodes, allocation: Allocation) -> None:
        self.run_dir, self.attempt, self.nodes, self.num_agents = run, attempt, nodes, allocation.num_agents
        self.phases = PhaseWatch(run, attempt, allocation.granted_at)
        self.srun_log_size = 0
        self.forwarded = False
        self.stopped_at: float | None = None
        self.late_at = time.monotonic() + plan.limits.start_timeout_s
        self.is_late = False
        """True if agents missed the start deadline and the attempt was ended."""

    def look(self, *, is_stopped: bool) -> None:
        self.phases.look()
        self._look_for_dead_nodes()
        if is_stopped and not self.forwarded:
            self._forward_stop()
        elif time.monotonic() > self.late_at:
            self.late_at = math.inf
            if not self._agents_listen():
                self.is_late = True
                self.nodes.terminate()

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


class PhaseWatch:
    """Follows the events of one attempt and writes `attempt/brought_up` once the trainer has started."""

    def __init__(self, run: RunDir, attempt: AttemptDir, granted_at: Callable[[], float | None]) -> None:
        self.run_dir, self.attempt, self.granted_at = run, attempt, granted_at
        self.size, self.is_done = -1, False

    def look(self) -> None:
        """Check for new events; cheap without them."""
        if self.is_done or not self.run_dir.events.is_file():
            return
        size = self.run_dir.events.stat().st_size
        if size == self.size:
            return
        self.size = size
        start = ("attempt/started", self.attempt.number)
        rows = read_rows(self.run_dir.events)
        events = list(itertools.dropwhile(lambda row: (row.get("kind"), row.get("attempt")) != start, rows))
        if any(event.get("kind") == "trainer/started" for event in events):
            self.is_done = True
            phases = compute_phases(events, self._zero(events))
            append_event(self.run_dir, "attempt/brought_up", attempt=self.attempt.number, **phases)

    def _zero(self, events: list[dict[str, Any]]) -> float:
        """Return the start of the allocation for its first attempt, otherwise the start of the attempt."""
        own = float(events[0]["time"])
        is_first = self.attempt.number == 1 or self._follows_a_requeue()
        granted = self.granted_at() if is_first else None
        return own if granted is None else granted

    def _follows_a_requeue(self) -> bool:
        started = [row for row in read_rows(self.run_dir.events) if row.get("kind") == "attempt/started"]
        starts = [(row["job"], row["slurm_restarts"]) for row in started]
        return len(starts) < 2 or starts[-1] != starts[-2]


def compute_phases(events: Iterable[Mapping[str, Any]], zero: float) -> dict[str, float]:
    """Return the seconds from `zero` to the end of each phase.

    >>> compute_phases([{"kind": "node/started", "time": 12.5}, {"kind": "node/started", "time": 13.0}], 10.0)
    {'agents_s': 3.0}
    """
    times = {PHASES[row["kind"]]: float(row["time"]) for row in events if row.get("kind") in PHASES}
    # Slurm counts in whole seconds, so a phase may seem to end before the job began.
    return {name: round(max(0.0, time - zero), 2) for name, time in times.items()}


class LimitWatch:
    """Stops an attempt before the time limit, with a lead from measured saves.

    Args:
        ask_s: interval of queries to the scheduler.
    """

    def __init__(self, run: RunDir, plan: JobPlan, allocation: Allocation, ask_s: float = _ASK_S) -> None:
        self.run_dir, self.limits, self.allocation, self.ask_s = run, plan.limits, allocation, ask_s
        self.lead_s: float = plan.limits.checkpoint_lead_s
        self.measured: Measured | None = None
        self._ends_at: float | None = None
        self._asked = -math.inf
        self._learned = -math.inf

    def look(self) -> str | None:
        """Return the reason to stop now; None while there is time. Cheap."""
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
