"""The controller: outside of any container, it starts attempts of a run until the run has ended.

The `Allocation` has everything that depends on the launcher. All state is in the run directory, so a controller
restarted by a requeue or after a kill continues the run.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from types import FrameType
from typing import Any, TypeVar

from slurm_rl.errors import LeaseError, RunDirError, SlurmRLError
from slurm_rl.launch.controller.allocation import Allocation
from slurm_rl.launch.controller.attempts import (
    EXIT_CONTINUES,
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
from slurm_rl.launch.controller.ends import (
    KILLED,
    load_ends,
    newest_step,
    read_end,
    remedy_memory,
    settle_killed_attempts,
)
from slurm_rl.launch.controller.record import require_finished
from slurm_rl.launch.controller.results import copy_behind
from slurm_rl.launch.controller.watch import AttemptWatch, LimitWatch, end_nodes
from slurm_rl.plan.image_file import check_image_file, image_path
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.save_deadline import save_by
from slurm_rl.run_dir.io_errors import explain_io_error, io_error_code, log_to_stderr, reserve_space
from slurm_rl.run_dir.run_dir import (
    AttemptDir,
    RunDir,
    append_event,
    hold,
    read_json,
    report_damage,
    write_json,
    write_last,
)
from slurm_rl.run_dir.run_lock import RunLock
from slurm_rl.run_dir.run_secret import checkpoint_key, token_file

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
"""Signals of a controller; the supervisor blocks them until the controller handles them."""
_POLL_S = 0.1
_ROOM_S = 60.0
_ROOM_LOOK_S = 2.0
_STATES = {"finish": "finished", "interrupt": "interrupted"}
_EXIT_CODES = {"finish": EXIT_FINISHED, "interrupt": EXIT_INTERRUPTED}
T = TypeVar("T")


class Controller:
    """Runs the attempts of one job."""

    def __init__(self, run: RunDir, plan: JobPlan, allocation: Allocation) -> None:
        self.run_dir, self.plan, self.allocation = run, plan, allocation
        self.job_key = allocation.job_key
        self.superseded: str | None = None
        self.stopped_by: StoppedBy = ""
        self.stop_signal = ""
        """Name of the user's signal: SIGTERM of `cancel` and scancel, SIGINT of Ctrl-C."""
        self.lease: RunLock | None = None

    def main(self) -> int:
        """Run the job and return its exit code."""
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._on_user_stop)
        signal.signal(signal.SIGUSR2, self._on_scheduler_stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        try:
            with self._once_there_is_room(self._take_run) as self.lease:
                return self._lead()
        except LeaseError as error:
            log_to_stderr(str(error))
            self.allocation.close({"state": "failed", "exit_code": EXIT_NOT_OURS, "cause": str(error)})
            return EXIT_NOT_OURS
        except (OSError, RunDirError) as error:
            cause = str(error) if isinstance(error, RunDirError) else explain_io_error(error, self.run_dir.path)
            if cause is None:
                raise
            return self._end("fail", [AttemptEnd("failed", cause, saved_step=newest_step(self.run_dir))])

    def is_stopped(self) -> bool:
        return self.stopped_by != ""

    def _take_run(self) -> RunLock:
        """Acquire the run lock, and record this job in job.json."""
        run, allocation = self.run_dir, self.allocation
        lock = hold(run, allocation.holder(), allocation.is_known_alive, self.is_stopped)
        run.epoch, job = lock.epoch, allocation.job
        self.superseded = allocation.adopt()
        # The submitting process writes it later, or never if it died; with two at once, it may have the other id.
        if job and not self.superseded and (not run.job.is_file() or read_json(run.job)["job_id"] != job["job_id"]):
            write_json(run.job, {**job, "earlier": list(allocation.earlier)} if allocation.earlier else job)
        return lock

    def _once_there_is_room(self, work: Callable[[], T]) -> T:
        """Return the result of `work`; a temporarily full disk does not end a run with remaining attempts."""
        give_up_at = time.monotonic() + (_ROOM_S if self.plan.limits.max_failures else 0.0)
        while True:
            try:
                return work()
            except (OSError, RunDirError) as error:
                if io_error_code(error) is None or self.is_stopped() or time.monotonic() > give_up_at:
                    raise
                log_to_stderr(f"{error}; looking for {_ROOM_S:g} s whether that changes")
            time.sleep(_ROOM_LOOK_S)

    def _lead(self) -> int:
        """Run attempts until one settles the run."""
        if self.superseded:
            log_to_stderr(f"nothing to do: {self.superseded}")
            return EXIT_NOT_OURS
        keys = {self.job_key, *self.allocation.earlier}
        earlier = load_ends(self.run_dir, keys)
        if self.run_dir.end.is_file() and earlier and earlier[-1].outcome == "finished":
            # Finished in an earlier start: Slurm requeues a preempted job once more when it ends.
            return EXIT_FINISHED
        self.run_dir.end.unlink(missing_ok=True)
        if self.plan.after is not None and not self.run_dir.attempt_numbers():
            require_finished(RunDir(self.plan.after))
        report_damage(self.run_dir)
        for number in settle_killed_attempts(self.run_dir, keys):
            hosts = self.allocation.find_lost(number)
            fields = {"hosts": hosts} if hosts else {}
            append_event(self.run_dir, "attempt/ended", attempt=number, outcome="lost", cause=KILLED, **fields)
        ends = load_ends(self.run_dir, keys)
        decision: Decision = "fail" if stands_still(ends) else "retry"
        if decision == "retry":
            self.allocation.secure()
        while decision == "retry":
            attempt = self._once_there_is_room(self._begin_attempt)
            end = self._run_attempt(attempt)
            ends = load_ends(self.run_dir, keys)
            # On a full disk the end was not written.
            ends += [] if attempt.end.is_file() else [end]
            if self.stopped_by == "user" and self.allocation.is_taken_back():
                self.stopped_by = "scheduler"
            decision = decide(
                ends,
                stopped_by=self.stopped_by,
                max_failures=self.plan.limits.max_failures,
                has_nodes=self.allocation.has_nodes,
            )
        return self._requeue(ends) if decision == "requeue" else self._end(decision, ends)

    # ---- one attempt ---------------------------------------------------------------------------

    def _begin_attempt(self) -> AttemptDir:
        self.run_dir.require_ours()
        reserve_space(self.run_dir.reserve)
        newest = max(self.run_dir.attempt_numbers(), default=0)
        # A directory that was created without space for its first file is this one.
        is_begun = newest > 0 and self.run_dir.attempt(newest).start.is_file()
        attempt = self.run_dir.attempt(max(1, newest + is_begun))
        attempt.logs.mkdir(parents=True, exist_ok=True)
        fields, held = self.allocation.prepare(attempt), self._held()
        if "ends_at" in held and self.plan.external is not None:
            fields["save_by"] = save_by(held["ends_at"], held["lead_s"])
        write_json(attempt.start, {"job": self.job_key, "epoch": self.run_dir.epoch, **fields})
        self.run_dir.point_latest_at(attempt.number)
        if self.plan.signs_copies:
            # Here, since the trainer's environment does not contain the token.
            checkpoint_key(self.run_dir, os.environ)
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", 0))
        append_event(
            self.run_dir,
            "attempt/started",
            attempt=attempt.number,
            job=self.job_key,
            slurm_restarts=restarts,
            **held,
        )
        return attempt

    def _held(self) -> dict[str, Any]:
        """Return the nodes and GPUs for the goodput ledger, spare nodes separately."""
        plan, known = self.plan, self.allocation.holding()
        nodes, each = known.get("nodes", plan.num_nodes), plan.gpus_per_node or 1
        spare = max(0, nodes - plan.num_nodes) * each
        # Nodes of several kinds have no spares; each has the GPUs of its kind.
        gpus = {"gpus": sum(plan.gpus_by_node) + spare} if plan.gpus_per_node else {}
        ends_at = known.get("ends_at") if known else self.allocation.ends_at()
        limit = {"lead_s": plan.limits.checkpoint_lead_s, "ends_at": ends_at} if ends_at else {}
        return {"nodes": nodes, **gpus, "spare": spare, **known, **limit}

    def _run_attempt(self, attempt: AttemptDir) -> AttemptEnd:
        start = time.monotonic()
        try:
            end = self._run_nodes(attempt)
        except LeaseError:
            raise
        except SlurmRLError as error:
            end = AttemptEnd("failed", str(error), error.exit_code)
        except OSError as error:
            cause = explain_io_error(error, self.run_dir.path)
            if cause is None:
                raise
            end = AttemptEnd("failed", cause, EXIT_FAILED)
        finally:
            with contextlib.suppress(OSError):  # record the outcome anyway
                token_file(self.run_dir, attempt.number).unlink(missing_ok=True)
        end = remedy_memory(self.run_dir, self.plan, attempt, self.allocation.judge(attempt, end))
        end = replace(end, saved_step=newest_step(self.run_dir), job_key=self.job_key)
        write_last(self.run_dir, attempt.end, asdict(end))
        seconds = round(time.monotonic() - start, 1)
        stopped = {"stopped_by": self.stopped_by} if self.stopped_by else {}
        fields = {"outcome": end.outcome, "cause": end.cause, "seconds": seconds, **stopped}
        append_event(self.run_dir, "attempt/ended", attempt=attempt.number, **fields)
        log_to_stderr(f"attempt {attempt.number} {end.outcome} {end.cause}".rstrip())
        if self.plan.copies_to is not None and end.has_begun:
            copy_behind(self.run_dir, self.allocation, attempt, self.is_stopped)
        return end

    def _run_nodes(self, attempt: AttemptDir) -> AttemptEnd:
        image = image_path(self.plan.container["runtime"], self.plan.container["image"])
        if image is not None:
            check_image_file(image)
        nodes = self.allocation.start(attempt, self.is_stopped)
        if nodes is None:
            return AttemptEnd("lost", "stopped before the nodes were started")
        watch = AttemptWatch(self.run_dir, self.plan, attempt, nodes, self.allocation)
        limit = LimitWatch(self.run_dir, self.plan, self.allocation)
        while nodes.poll() is None:
            if self.lease is not None and self.lease.lost is not None:
                end_nodes(nodes)
                raise self.lease.lost
            # The provider ends the machines, as Slurm does at the time limit.
            if not self.stopped_by and (notice := self.allocation.notice or limit.look()):
                log_to_stderr(notice)
                self.stopped_by = "scheduler"
            watch.look(is_stopped=self.is_stopped())
            time.sleep(_POLL_S)
        watch.look(is_stopped=False)
        status = nodes.returncode or 0
        self.allocation.settle(attempt, status, is_late=watch.is_late)
        end = read_end(attempt, status, asked=self.is_stopped())
        self.stopped_by = self.stopped_by or ("scheduler" if end.at_limit else "")
        watch.finish(end)
        return end

    # ---- the end of the job --------------------------------------------------------------------

    def _end(self, decision: Decision, ends: list[AttemptEnd], cause: str | None = None) -> int:
        self.run_dir.require_ours()
        last = ends[-1]
        state = _STATES.get(decision, "failed")
        code = _EXIT_CODES.get(decision, last.exit_code or EXIT_FAILED)
        cause = cause or (explain_failure(ends) if decision == "fail" else self._explain_stop(last))
        end = {"state": state, "exit_code": code, "cause": cause, "step": last.saved_step}
        write_last(self.run_dir, self.run_dir.end, end)
        with contextlib.suppress(OSError):
            self.run_dir.reserve.unlink(missing_ok=True)
        append_event(self.run_dir, "job/ended", state=state, cause=cause)
        log_to_stderr(f"{state} {cause}".rstrip())
        self.allocation.close(end)
        return code

    def _explain_stop(self, last: AttemptEnd) -> str:
        """Return the cause of an end that is no failure; a cancel is called that."""
        if last.outcome == "finished" or self.stopped_by != "user":
            return last.cause
        saved = "" if last.saved_step < 0 else f"step {last.saved_step} is saved"
        result = saved if last.outcome == "checkpointed" else last.cause
        return "; ".join(filter(None, [f"cancelled by the user ({self.stop_signal})", result]))

    def _requeue(self, ends: list[AttemptEnd]) -> int:
        self.run_dir.require_ours()
        # From here on SIGTERM comes from the scheduler and ends this start of the job.
        self.stopped_by = ""
        refusal = self.allocation.requeue(ends[-1], self.is_stopped)
        if refusal is None:
            return EXIT_CONTINUES
        decision: Decision = "fail" if ends[-1].outcome == "failed" else "interrupt"
        return self._end(decision, ends, "; ".join(filter(None, [ends[-1].cause, refusal])))

    # ---- signals -------------------------------------------------------------------------------

    def _on_user_stop(self, signum: int, frame: FrameType | None) -> None:
        self.stopped_by, self.stop_signal = "user", signal.Signals(signum).name

    def _on_scheduler_stop(self, signum: int, frame: FrameType | None) -> None:
        self.stopped_by = self.stopped_by or "scheduler"
