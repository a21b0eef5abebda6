"""Allocation of a Slurm job, for the controller in its batch step."""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm_rl.errors import SlurmRLError, SubmitError
from slurm_rl.launch.controller.agents import OURS, settle_late_agents
from slurm_rl.launch.controller.allocation import Allocation, IsStopped, Nodes
from slurm_rl.launch.controller.attempts import AttemptEnd
from slurm_rl.launch.controller.ends import find_lost_nodes, find_task_errors
from slurm_rl.launch.slurm.command_line import SlurmUnavailableError
from slurm_rl.launch.slurm.commands import (
    cancel,
    element_id,
    find_by_script,
    note_in_comment,
    query_hold,
    query_jobs,
    requeue,
)
from slurm_rl.launch.slurm.exclude import exclude_at_requeue
from slurm_rl.launch.slurm.hosts import Hosts
from slurm_rl.launch.slurm.launcher import STOPPED
from slurm_rl.launch.slurm.partitions import kill_wait_s, nodes_out_of_service
from slurm_rl.launch.slurm.srun import clean_nodes, settle_silent_tasks, srun_argv, start_slurm_agents, start_slurm_copy
from slurm_rl.launch.slurm.successor import LOST, Successor, follow, needs_successor, was_ended_by_slurm
from slurm_rl.node.processes import start_child
from slurm_rl.node.rendezvous import comes_true
from slurm_rl.plan.job import NODE_VARIABLE, JobPlan
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event
from slurm_rl.run_dir.run_lock import LockHolder
from slurm_rl.run_dir.run_secret import create_token

# Time for a restart or an upgrade of Slurm's controller.
_UNAVAILABLE_S = 900.0
# Slurm ends this process once it has put the job back.
_END_S = 90.0
# Message for jobs with --no-requeue, perhaps set by the site: waiting is useless.
_FORBIDDEN = "operation is presently disabled"
_CHECK_S = 10
_SCRIPT = """
while sleep {check_s}; do
  # Empty while slurmctld does not answer.
  nodes=$(squeue -h -t R -j {job} -o %N) && [ -n "$nodes" ] || continue
  scontrol show hostnames "$nodes" | grep -qxF {host} && continue
  # Slurm may have restarted the job elsewhere, while this step's node was away.
  job=$(scontrol show job {job}) || continue
  case "$job" in *" Restarts={restarts} "*) ;; *) exit 0;; esac
  # This ends the step as well.
  scontrol requeue {job} || {{ scontrol update JobId={job} Comment="{lost}"; scancel {job}; }}
done
"""


class SlurmAllocation(Allocation):
    """See `Allocation`."""

    signals_limit = True

    def __init__(self, run: RunDir, plan: JobPlan) -> None:
        self.run_dir, self.plan = run, plan
        self.job_key = os.environ["SLURM_JOB_ID"]
        self.num_agents = plan.num_nodes
        self.job_id = element_id(self.job_key, os.environ)
        self.job = {"launcher": plan.launcher, "job_id": self.job_id}
        self.hosts = Hosts(run, plan)
        self.chosen: list[str] = []
        self.guard = Guard(plan, self.job_id)
        self.successor = Successor(run, plan, self.job_id, self.job_key)

    @property
    def has_nodes(self) -> bool:
        return self.hosts.are_enough

    def holder(self) -> LockHolder:
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", 0))
        return LockHolder.of_this_process(self.plan.launcher, self.job_id, restarts)

    def is_known_alive(self, holder: LockHolder) -> bool:
        try:
            found = query_jobs([holder.job]).get(holder.job)
        except SlurmRLError:
            return False  # Slurm does not answer; the heartbeat decides
        return found is not None and not found.state.is_ended

    def adopt(self) -> str | None:
        self.earlier, reason = follow(self.run_dir, self.job_id)
        return reason

    def secure(self) -> None:
        with contextlib.suppress(SlurmRLError):
            if needs_successor(self.job_id):
                self.successor.ensure()

    def is_taken_back(self) -> bool:
        try:
            return self.successor.job_id is not None and was_ended_by_slurm(self.job_id)
        except SlurmRLError:
            return False

    def prepare(self, attempt: AttemptDir) -> dict[str, Any]:
        self.chosen = []
        if self.plan.torchrun is None:
            create_token(self.run_dir, attempt.number)
        return {"kill_wait_s": kill_wait_s(), "job_id": self.job_id}

    def start(self, attempt: AttemptDir, is_stopped: IsStopped) -> Nodes | None:
        self.chosen, fields = self.hosts.choose(attempt, os.environ)
        fields |= {"left_out": self.hosts.unfit} if self.hosts.unfit else {}
        append_event(self.run_dir, "preflight/passed", attempt=attempt.number, nodes=self.chosen, **fields)
        if is_stopped():
            return None
        self.guard.keep(self.hosts.fit, attempt.log("guard"), os.environ)
        return start_slurm_agents(self.plan, attempt, self.chosen, self.job_key, os.environ)

    def settle(self, attempt: AttemptDir, status: int, *, is_late: bool) -> None:
        if is_late:
            settle_late_agents(self.plan, attempt, self.chosen)
        settle_silent_tasks(self.plan, attempt, self.chosen, find_task_errors(attempt))

    def judge(self, attempt: AttemptDir, end: AttemptEnd) -> AttemptEnd:
        if end.outcome == "failed" and self.hosts.wants_requeue:
            # Nothing was started: other nodes are wanted, and the run has not failed.
            return replace(end, outcome="lost", has_begun=False)
        silent = clean_nodes(self.run_dir, self.plan, attempt, self.chosen, self.job_key, os.environ)
        lost = self.hosts.note_losses([*find_lost_nodes(attempt), *silent]) if end.outcome == "failed" else []
        if not lost:
            return end
        append_event(self.run_dir, "nodes/lost", attempt=attempt.number, hosts=lost)
        return replace(end, outcome="lost", cause=f"lost {', '.join(lost)}; {end.cause}")

    def start_copy(self, attempt: AttemptDir) -> Nodes | None:
        return start_slurm_copy(self.plan, attempt, self.chosen, self.job_key, os.environ)

    def holding(self) -> dict[str, Any]:
        times: dict[str, float] = {}
        with contextlib.suppress(SlurmRLError):
            times = query_hold(self.job_id)
        return {"nodes": len(self.hosts.names), **times}

    def ends_at(self) -> float | None:
        with contextlib.suppress(SlurmRLError):
            return query_hold(self.job_id).get("ends_at")
        return None

    def find_lost(self, attempt: int) -> list[str]:
        events = read_rows(self.run_dir.events)
        passed = [row for row in events if row.get("kind") == "preflight/passed" and row.get("attempt") == attempt]
        try:
            down = nodes_out_of_service()
        except SlurmRLError:
            return []
        return [host for host in passed[-1]["nodes"] if host in down] if passed else []

    def requeue(self, end: AttemptEnd, is_ended: IsStopped) -> str | None:
        if self.successor.job_id is not None:
            self._hand_over()
            return None
        # Before: Slurm may end this process while it asks.
        append_event(self.run_dir, "job/requeued", cause=end.cause, step=end.saved_step)
        refusal = _requeue(self.run_dir, self.job_key, is_ended, self._plan_exclusion(self.job_id))
        if refusal is None:
            return None
        self.successor.ensure()
        if self.successor.job_id is not None:
            self._hand_over()
            return None
        command = f"python -m slurm_rl resume {shlex.quote(str(self.run_dir.path))}"
        refusals = f"{refusal}; nor accept a successor: {self.successor.refusal}"
        return f"Slurm did not requeue the job: {refusals}. Next: {command}"

    def _hand_over(self) -> None:
        """Make the successor the job of the run."""
        exclude = self._plan_exclusion(str(self.successor.job_id))
        self.successor.take_over()
        exclude()

    def close(self, end: dict[str, Any]) -> None:
        self.successor.withdraw()

    def _plan_exclusion(self, job_id: str) -> Callable[[], None]:
        """Return the options that exclude bad nodes from the next start; chosen before the requeue, after which time is
        short."""
        within_s = max(1.0, kill_wait_s() - 2.0)
        try:
            found = self.hosts.checks.exclusion(self.hosts.names)
        except SlurmRLError as error:
            append_event(self.run_dir, "nodes/not_excluded", job=self.job_id, cause=str(error))
            return lambda: None
        return lambda: exclude_at_requeue(self.run_dir, self.plan, job_id, found, within_s)

    def abandon(self, cause: str) -> None:
        """End the job by a signal without a handler: for SIGTERM and SIGKILL slurmstepd first writes a line into the
        step's log, and would wait for that file. The end of the agent ends the step. The cause goes into the job's
        comment, where `status` finds it."""
        note_in_comment(self.job_id, f"{OURS}{STOPPED}{cause}")
        cancel([self.job_id], signal="ALRM", steps=True)
        cancel(find_by_script(str(self.successor.script)))


def _requeue(run: RunDir, job_id: str, is_ended: IsStopped, exclude: Callable[[], None]) -> str | None:
    """Ask Slurm to requeue the job of this process, and wait until Slurm ends it.

    Args:
        is_ended: whether Slurm's SIGTERM has arrived.
        exclude: excludes bad nodes from the next start, after the requeue.

    Returns:
        Slurm's error message; None on success.
    """
    deadline = time.monotonic() + _UNAVAILABLE_S
    refusal = None
    while not is_ended():
        try:
            requeue(job_id)
            break
        except SlurmUnavailableError as error:
            if time.monotonic() > deadline:
                return error.seen or str(error)
            time.sleep(2.0)
        except SubmitError as error:
            # Slurm requeues a preempted job by itself and refuses a second time; then the end comes all the same.
            refusal = error.seen or str(error)
            append_event(run, "job/requeue_refused", cause=refusal)
            if _FORBIDDEN in refusal.lower():
                return refusal
            break
    exclude()
    return None if comes_true(is_ended, _END_S) else refusal


def render_guard(host: str, job_id: str, restarts: int) -> str:
    """Return a shell script that requeues the job, or cancels it if requeues are forbidden, once `host` is not in it.

    Args:
        restarts: the script ends if the job has restarted since.
    """
    return _SCRIPT.format(
        job=shlex.quote(job_id), host=shlex.quote(host), restarts=restarts, check_s=_CHECK_S, lost=LOST
    )


class Guard:
    """Restarts a job that has lost the node of its controller.

    With spare nodes a job is --no-kill: Slurm removes a lost node and lets the others continue. If the lost node is
    that of the batch step, no step is left to notice, so a process waits on another node, in a step that outlives its
    srun.
    """

    def __init__(self, plan: JobPlan, job_id: str) -> None:
        self.plan, self.job_id = plan, job_id
        self._step: subprocess.Popen[bytes] | None = None

    def keep(self, hosts: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        """Start the guard on the last of the other nodes, unless it runs already."""
        own = env.get(NODE_VARIABLE, "")
        others = [host for host in hosts if host != own]
        is_running = self._step is not None and self._step.poll() is None
        if is_running or not own or not others or not self.plan.sbatch.get("no-kill"):
            return
        restarts = int(env.get("SLURM_RESTART_COUNT", 0))
        guard = ["--no-kill", "--output=none", "/bin/sh", "-c", render_guard(own, self.job_id, restarts)]
        # srun ends its task at SIGTERM: when this process dies, its successor starts another guard.
        self._step = start_child(srun_argv(self.plan, others[-1:], guard), env, log, signal.SIGTERM)
