"""The controller: outside any container, it starts attempts of a run until one settles it.

submitit calls `run_controller` with the run directory's path and nothing else, so a requeue that
replays the old pickle loses nothing: all state is in the run directory.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import time
from dataclasses import asdict, replace
from types import FrameType

from slurm_rl.disk import explain_refusal, keep_room, say
from slurm_rl.errors import LeaseError, RunDirError, SlurmRLError
from slurm_rl.image.files import check_image_file, image_path
from slurm_rl.lease import Lease
from slurm_rl.machines.head import Machines
from slurm_rl.machines.nodes import Nodes
from slurm_rl.node.ray_cluster import create_token, token_file
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir, RunDir, append_event, read_json, report_damage, write_json, write_last
from slurm_rl.run_secret import checkpoint_key
from slurm_rl.slurm.attempts import (
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_INTERRUPTED,
    EXIT_NOT_OURS,
    AttemptEnd,
    Decision,
    StoppedBy,
    decide,
    explain_failure,
    stands_still,
)
from slurm_rl.slurm.cleaning import clean_here, clean_nodes
from slurm_rl.slurm.commands import DEFAULT_KILL_WAIT_S, kill_wait_s
from slurm_rl.slurm.ends import (
    KILLED,
    find_lost_nodes,
    find_task_errors,
    load_ends,
    newest_step,
    read_end,
    settle_killed_attempts,
)
from slurm_rl.slurm.holding import own_epoch, take_run
from slurm_rl.slurm.hosts import Hosts
from slurm_rl.slurm.launch import start_local_agent, start_slurm_agents
from slurm_rl.slurm.requeue import requeue_job
from slurm_rl.slurm.silent import settle_late_agents, settle_silent_agent, settle_silent_tasks
from slurm_rl.slurm.supervisor import EXIT_KILLED, STOP_SIGNALS, Supervisor
from slurm_rl.slurm.watch import AttemptWatch, end_nodes

POLL_S = 0.1
_CLEANING_S = 20.0
_STATES = {"finish": "finished", "interrupt": "interrupted"}
_EXIT_CODES = {"finish": EXIT_FINISHED, "interrupt": EXIT_INTERRUPTED}


def run_controller(run_dir: str) -> int:
    """Entry point for submitit; the result is the job's exit code."""
    run = RunDir(run_dir)
    plan = JobPlan.from_json(read_json(run.plan))
    if plan.launcher != "slurm":
        return Controller(run).main()

    def note(how: str) -> None:
        run.epoch = own_epoch(run, plan)
        append_event(run, "controller/killed", by=how)

    # Told to leave, the trainer may take as long as before a time limit.
    patience_s = plan.limits.signal_lead_s + _CLEANING_S
    supervisor = Supervisor(lambda: Controller(run).main(), patience_s=patience_s, on_death=note)
    status = supervisor.main()
    if status == EXIT_KILLED:
        cause = "its controller was killed again and again; see dmesg for the kernel's reason"
        end = {"state": "failed", "exit_code": EXIT_FAILED, "cause": cause, "step": newest_step(run)}
        write_last(run, run.end, end)
        return EXIT_FAILED
    return status


class Controller:
    """Attempts of one job, one after the other."""

    def __init__(self, run: RunDir) -> None:
        self.run_dir = run
        self.plan = JobPlan.from_json(read_json(run.plan))
        self.job_id = os.environ.get("SLURM_JOB_ID") if self.plan.launcher == "slurm" else None
        self.job_key = self.job_id or f"local-{os.getpid()}-{int(time.time())}"
        self.hosts = Hosts(self.plan) if self.job_id else None
        self.machines = Machines.open(run, self.plan, self.job_key) if self.plan.launcher == "machines" else None
        self.kill_wait_s = _kill_wait_s() if self.job_id else None
        self.chosen: list[str] = []
        self.stopped_by: StoppedBy = ""
        self.lease: Lease | None = None

    def main(self) -> int:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._on_user_stop)
        signal.signal(signal.SIGUSR2, self._on_scheduler_stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        try:
            with take_run(self.run_dir, self.plan, lambda: self.stopped_by != "") as self.lease:
                return self._lead()
        except LeaseError as error:
            say(str(error))
            if self.machines is not None:
                self.machines.say_goodbye(state="failed", exit_code=EXIT_NOT_OURS, cause=str(error))
            return EXIT_NOT_OURS
        except (OSError, RunDirError) as error:
            cause = str(error) if isinstance(error, RunDirError) else explain_refusal(error, self.run_dir.path)
            if cause is None:
                raise
            return self._end("fail", [AttemptEnd("failed", cause, saved_step=newest_step(self.run_dir))])

    def _lead(self) -> int:
        """Attempts until one settles the run, which is this controller's."""
        if self.job_id and self._has_finished():
            # Current Slurms requeue a job that was preempted once more when it ends, finished or not.
            return EXIT_FINISHED
        self.run_dir.end.unlink(missing_ok=True)
        report_damage(self.run_dir)
        for number in settle_killed_attempts(self.run_dir, self.job_key):
            append_event(self.run_dir, "attempt/ended", attempt=number, outcome="lost", cause=KILLED)
        ends = load_ends(self.run_dir, self.job_key)
        decision: Decision = "fail" if stands_still(ends) else "retry"
        while decision == "retry":
            attempt = self._begin_attempt()
            end = self._run_attempt(attempt)
            ends = load_ends(self.run_dir, self.job_key)
            # A full disk may have taken no word of it.
            ends += [] if attempt.end.is_file() else [end]
            decision = self._decide(ends)
        return self._requeue(ends) if decision == "requeue" else self._end(decision, ends)

    def _has_finished(self) -> bool:
        """Before this start of the job: `resume` would have removed the end."""
        return self.run_dir.end.is_file() and bool(read_json(self.run_dir.end)["state"] == "finished")

    def _decide(self, ends: list[AttemptEnd]) -> Decision:
        return decide(
            ends,
            stopped_by=self.stopped_by,
            max_failures=self.plan.limits.max_failures,
            has_nodes=self.hosts.are_enough if self.hosts else self.machines is None or not self.machines.gave_up,
            can_requeue=self.job_id is not None,
        )

    # ---- one attempt ---------------------------------------------------------------------------

    def _begin_attempt(self) -> AttemptDir:
        self.run_dir.require_ours()
        keep_room(self.run_dir.reserve)
        attempt = self.run_dir.attempt(max(self.run_dir.attempt_numbers(), default=0) + 1)
        attempt.logs.mkdir(parents=True)
        write_json(attempt.start, {"job": self.job_key, "epoch": self.run_dir.epoch, "kill_wait_s": self.kill_wait_s})
        self.run_dir.point_latest_at(attempt.number)
        if self.plan.torchrun is None:
            token = self.machines.ray_token(attempt.number) if self.machines else None
            create_token(self.run_dir, attempt.number, token)
        # Here, since the trainer's environment has no token that it could be made of.
        checkpoint_key(self.run_dir, os.environ)
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", 0))
        append_event(self.run_dir, "attempt/started", attempt=attempt.number, job=self.job_key, slurm_restarts=restarts)
        return attempt

    def _run_attempt(self, attempt: AttemptDir) -> AttemptEnd:
        start = time.monotonic()
        self.chosen = []
        try:
            end = self._run_nodes(attempt)
        except LeaseError:
            raise
        except SlurmRLError as error:
            end = AttemptEnd("failed", str(error), error.exit_code)
        except OSError as error:
            cause = explain_refusal(error, self.run_dir.path)
            if cause is None:
                raise
            end = AttemptEnd("failed", cause, EXIT_FAILED)
        finally:
            with contextlib.suppress(OSError):  # how the attempt ended is told all the same
                token_file(self.run_dir, attempt.number).unlink(missing_ok=True)
        end = self._clean_up(attempt, end)
        end = replace(end, saved_step=newest_step(self.run_dir), job_key=self.job_key)
        write_last(self.run_dir, attempt.end, asdict(end))
        seconds = round(time.monotonic() - start, 1)
        append_event(
            self.run_dir, "attempt/ended", attempt=attempt.number, outcome=end.outcome, cause=end.cause, seconds=seconds
        )
        return end

    def _run_nodes(self, attempt: AttemptDir) -> AttemptEnd:
        nodes = self._start_nodes(attempt)
        if nodes is None:
            return AttemptEnd("lost", "asked to stop before the nodes were started")
        watch = AttemptWatch(self.run_dir, self.plan, attempt, nodes, self.job_id)
        while nodes.poll() is None:
            if self.lease is not None and self.lease.lost is not None:
                end_nodes(nodes)
                raise self.lease.lost
            self._heed_notice()
            watch.look(is_stopped=bool(self.stopped_by))
            time.sleep(POLL_S)
        watch.look(is_stopped=False)
        if self.machines is None:
            self._settle_silent(attempt, nodes.returncode or 0, is_late=watch.is_late)
        return read_end(attempt, nodes.returncode, asked=bool(self.stopped_by))

    def _settle_silent(self, attempt: AttemptDir, status: int, *, is_late: bool) -> None:
        """Give agents that never spoke a record with the cause; other machines do so themselves."""
        if is_late:
            settle_late_agents(self.plan, attempt, self.chosen or [socket.gethostname()])
        elif self.hosts is None:
            settle_silent_agent(self.plan, attempt, 0, socket.gethostname(), attempt.log("node-0"), status)
        else:
            settle_silent_tasks(self.plan, attempt, self.chosen, find_task_errors(attempt))

    def _start_nodes(self, attempt: AttemptDir) -> Nodes | None:
        image = image_path(self.plan.container["runtime"], self.plan.container["image"])
        if image is not None:
            check_image_file(image)
        if self.machines is not None:
            self.machines.wait_for_all(lambda: self.stopped_by != "")
            return None if self.stopped_by else self.machines.start_agents(attempt, os.environ)
        if self.hosts is None:
            return start_local_agent(self.plan, attempt, self.job_key, os.environ)
        self.chosen = self.hosts.choose(attempt, os.environ)
        fields = {"left_out": self.hosts.unfit} if self.hosts.unfit else {}
        append_event(self.run_dir, "preflight/passed", attempt=attempt.number, nodes=self.chosen, **fields)
        if self.stopped_by:
            return None
        return start_slurm_agents(self.plan, attempt, self.chosen, self.job_key, os.environ)

    def _heed_notice(self) -> None:
        if self.machines is not None and self.machines.notice:
            # Whoever lends the machine takes it back, as Slurm does at the time limit.
            self.stopped_by = self.stopped_by or "scheduler"

    def _clean_up(self, attempt: AttemptDir, end: AttemptEnd) -> AttemptEnd:
        """Clean nodes whose agent could not; an attempt that failed because a node is gone is no failure."""
        if self.hosts is None:
            clean_here(self.run_dir, self.plan, attempt, self.job_key)
            return self.machines.judge(attempt, end) if self.machines else end
        silent = clean_nodes(self.run_dir, self.plan, attempt, self.chosen, self.job_key, os.environ)
        lost = self.hosts.note_losses([*find_lost_nodes(attempt), *silent]) if end.outcome == "failed" else []
        if not lost:
            return end
        append_event(self.run_dir, "nodes/lost", attempt=attempt.number, hosts=lost)
        return replace(end, outcome="lost", cause=f"lost {', '.join(lost)}; {end.cause}")

    # ---- the end of the job --------------------------------------------------------------------

    def _end(self, decision: Decision, ends: list[AttemptEnd], cause: str | None = None) -> int:
        self.run_dir.require_ours()
        last = ends[-1]
        state = _STATES.get(decision, "failed")
        code = _EXIT_CODES.get(decision, last.exit_code or EXIT_FAILED)
        cause = cause or (explain_failure(ends) if decision == "fail" else last.cause)
        write_last(
            self.run_dir, self.run_dir.end, {"state": state, "exit_code": code, "cause": cause, "step": last.saved_step}
        )
        with contextlib.suppress(OSError):
            self.run_dir.reserve.unlink(missing_ok=True)
        append_event(self.run_dir, "job/ended", state=state, cause=cause)
        if self.machines is not None:
            self.machines.say_goodbye(state=state, exit_code=code, cause=cause)
        return code

    def _requeue(self, ends: list[AttemptEnd]) -> int:
        if self.job_id is None:
            return self._end("interrupt", ends)
        self.run_dir.require_ours()
        append_event(self.run_dir, "job/requeued", cause=ends[-1].cause, step=ends[-1].saved_step)
        # From here on a SIGTERM is Slurm's, which ends this start of the job.
        self.stopped_by = ""
        refusal = requeue_job(self.run_dir, self.job_id, lambda: self.stopped_by != "")
        if refusal is None:
            return EXIT_FINISHED
        command = f"python -m slurm_rl resume {shlex.quote(str(self.run_dir.path))}"
        return self._end("interrupt", ends, f"Slurm did not requeue the job: {refusal}. Next: {command}")

    # ---- signals -------------------------------------------------------------------------------

    def _on_user_stop(self, signum: int, frame: FrameType | None) -> None:
        self.stopped_by = "user"

    def _on_scheduler_stop(self, signum: int, frame: FrameType | None) -> None:
        self.stopped_by = self.stopped_by or "scheduler"


def _kill_wait_s() -> float:
    try:
        return kill_wait_s()
    except SlurmRLError:  # slurmctld is away; a run goes on without it
        return DEFAULT_KILL_WAIT_S
