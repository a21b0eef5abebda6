"""The controller's part inside a Ray cluster that is not ours: `python -m slurm_rl.ray_jobs.inside <job id>`.

Ray starts it on the head node, in the working directory that submit shipped. It makes the run directory, starts
the trainer, tries again after failures as the plan allows, and says how the run ended. What the trainer prints and
every row of its metrics also go to the job's log, which is all that the submitter may be able to see.
Standard library alone, since external trainers run in images of their own.

SIGTERM (`cancel`, `ray job stop`) reaches the trainer by itself: Ray sends it to all processes of the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import IO

from slurm_rl import __version__
from slurm_rl.errors import BringUpError, ConfigError, LeaseError, RunDirError, SlurmRLError
from slurm_rl.holder import Holder
from slurm_rl.jsonl import RowTail
from slurm_rl.lease import Lease, take
from slurm_rl.node.driver import may_signal
from slurm_rl.node.image_report import PACKAGES, collect_report
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.judge import find_mismatches
from slurm_rl.ray_jobs.submit import ROW_MARK
from slurm_rl.run_dir import AttemptDir, RunDir, append_event, read_json, write_json, write_text
from slurm_rl.slurm.attempts import (
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_INTERRUPTED,
    EXIT_NOT_OURS,
    AttemptEnd,
    Decision,
    decide,
    explain_failure,
    stands_still,
)
from slurm_rl.slurm.ends import load_ends, newest_step, read_end, settle_killed_attempts

SHIPPED = Path("run")
"""Folder of the config and the plan in the working directory."""
_POLL_S = 0.2
# After the trainer: a child of its own may hold the pipe open.
_OUTPUT_S = 5.0
_STATES = {"finish": "finished", "interrupt": "interrupted"}
_EXIT_CODES = {"finish": EXIT_FINISHED, "interrupt": EXIT_INTERRUPTED}


def main(job_id: str) -> int:
    """Run attempts until one settles the run; the job's exit code."""
    try:
        plan = JobPlan.from_json(read_json(SHIPPED / "plan.json"))
        print(f"slurm_rl {__version__} from {Path(__file__).parents[2]} on {socket.gethostname()}", flush=True)
        check_versions(plan)
        return RayJobController(open_run(plan), plan, job_id).main()
    except SlurmRLError as error:
        print(f"slurm_rl: {error}", file=sys.stderr, flush=True)
        return error.exit_code


def check_versions(plan: JobPlan) -> None:
    """Refuse a cluster whose image lacks what the trainer needs; drivers and GPUs are the workers' affair.

    Raises:
        ConfigError: every mismatch by its name.
    """
    expected = {name: plan.expected[name] for name in ("python", *PACKAGES) if name in plan.expected}
    wrong = find_mismatches(collect_report()["versions"], expected, "none")
    if wrong:
        raise ConfigError(
            f"the Ray cluster's image must have what the trainer needs (on {socket.gethostname()})",
            seen="; ".join(f"{item.name} is {item.seen or 'not there'}, expected {item.expected}" for item in wrong),
            action="make the cluster from an image of containers/, or one with `pip install .[cuda]`",
        )


def open_run(plan: JobPlan) -> RunDir:
    """The trainer's run directory: new, or that of the same run.

    Raises:
        RunDirError: it cannot be written, or another run is there.
    """
    run, mine = RunDir(plan.run_dir), read_json(SHIPPED / "plan.json")
    if run.plan.is_file() and read_json(run.plan) != mine:
        raise RunDirError("run_dir must not hold another run", seen=plan.run_dir, action="choose another run_dir")
    try:
        run.secrets.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not run.config.is_file():
            write_text(run.config, (SHIPPED / "config.yaml").read_text(encoding="utf-8"))
        if not run.plan.is_file():
            write_json(run.plan, mine)
    except OSError as error:
        raise RunDirError(
            "the Ray cluster must be able to write the run directory",
            seen=f"{plan.run_dir} on {socket.gethostname()} ({error.strerror})",
            action="set cluster.remote_root to a folder that all its nodes see and may write",
        ) from error
    return run


class RayJobController:
    """Attempts of one Ray job, one after the other."""

    def __init__(self, run: RunDir, plan: JobPlan, job_id: str) -> None:
        self.run_dir, self.plan, self.job_id = run, plan, job_id
        self.is_stopped = False
        self.lease: Lease | None = None
        limit, lead_s = plan.limits.time_limit_min, plan.limits.signal_lead_s
        # Ray knows no time limit of a job.
        self.leave_at = float("inf") if limit is None else time.monotonic() + max(0.0, limit * 60.0 - lead_s)

    def main(self) -> int:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            signal.signal(signum, self._on_stop)
        own = Holder.of_this_process(self.plan.launcher, self.job_id)
        try:
            with take(self.run_dir.lease, own, is_stopped=lambda: self.is_stopped, on_wait=_say) as self.lease:
                self.run_dir.epoch = self.lease.epoch
                return self._lead()
        except LeaseError as error:
            _say(str(error))
            return EXIT_NOT_OURS

    def _lead(self) -> int:
        self.run_dir.end.unlink(missing_ok=True)
        settle_killed_attempts(self.run_dir, self.job_id)
        ends = load_ends(self.run_dir, self.job_id)
        decision: Decision = "fail" if ends and stands_still(ends) else "retry"
        while decision == "retry":
            self._run_attempt()
            ends = load_ends(self.run_dir, self.job_id)
            limit = self.plan.limits.max_failures
            decision = decide(ends, stopped_by="user" if self.is_stopped else "", max_failures=limit)
        return self._end(decision, ends)

    def _run_attempt(self) -> None:
        self.run_dir.require_ours()
        attempt = self.run_dir.attempt(max(self.run_dir.attempt_numbers(), default=0) + 1)
        attempt.logs.mkdir(parents=True)
        write_json(attempt.start, {"job": self.job_id, "epoch": self.run_dir.epoch})
        self.run_dir.point_latest_at(attempt.number)
        append_event(self.run_dir, "attempt/started", attempt=attempt.number, job=self.job_id)
        start = time.monotonic()
        status = self._run_trainer(attempt)
        end = read_end(attempt, status, asked=self.is_stopped)
        end = replace(end, saved_step=newest_step(self.run_dir), job_key=self.job_id)
        self.run_dir.require_ours()
        write_json(attempt.end, asdict(end))
        fields = {"outcome": end.outcome, "cause": end.cause, "seconds": round(time.monotonic() - start, 1)}
        append_event(self.run_dir, "attempt/ended", attempt=attempt.number, **fields)
        print(f"slurm_rl: attempt {attempt.number} {end.outcome} {end.cause}".rstrip(), flush=True)

    def _run_trainer(self, attempt: AttemptDir) -> int:
        """The trainer's exit status, as subprocess has it."""
        # The record by which `read_end` knows a trainer that had started.
        record = {"host": socket.gethostname(), "pid": os.getpid(), "rank": 0, "state": "running"}
        write_json(attempt.node(0), record | {"phases": {"running": round(time.time(), 3)}})
        argv = [sys.executable, *self.plan.driver_argv[1:], "--attempt", str(attempt.number)]
        rows = RowPrinter(self.run_dir.metrics)
        with attempt.log("driver").open("wb") as log:
            try:
                child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            except OSError as error:
                raise BringUpError("the trainer must start", seen=f"{argv[0]}: {error.strerror}") from None
            assert child.stdout is not None
            copier = threading.Thread(target=_copy, args=(child.stdout, log), daemon=True)
            copier.start()
            while child.poll() is None:
                if self.lease is not None and self.lease.lost is not None:
                    child.kill()  # what it would save is another's now
                    raise self.lease.lost
                rows.print_new()
                self._leave_in_time(child.pid)
                time.sleep(_POLL_S)
            copier.join(_OUTPUT_S)
        rows.print_new()
        write_json(attempt.node(0), record | {"state": "ended", "phases": {"running": round(time.time(), 3)}})
        return child.returncode

    def _leave_in_time(self, pid: int) -> None:
        """Ask the trainer once to save and leave, when the run's own time limit is near."""
        if time.monotonic() > self.leave_at and not self.is_stopped and may_signal(pid, self.leave_at):
            print("slurm_rl: job.time_limit is near", flush=True)
            self.is_stopped = True
            os.kill(pid, signal.SIGUSR2)

    def _end(self, decision: Decision, ends: list[AttemptEnd]) -> int:
        self.run_dir.require_ours()
        last = ends[-1]
        state, code = _STATES.get(decision, "failed"), _EXIT_CODES.get(decision, last.exit_code or EXIT_FAILED)
        cause = explain_failure(ends) if decision == "fail" else last.cause
        write_json(self.run_dir.end, {"state": state, "exit_code": code, "cause": cause, "step": last.saved_step})
        append_event(self.run_dir, "job/ended", state=state, cause=cause)
        print(f"slurm_rl: {state} {cause}".rstrip(), flush=True)
        return code

    def _on_stop(self, signum: int, frame: FrameType | None) -> None:
        self.is_stopped = True


class RowPrinter:
    """Prints the rows that are added to a file; those of earlier attempts are known already."""

    def __init__(self, path: Path) -> None:
        self.tail = RowTail(path, from_end=True)

    def print_new(self) -> None:
        for row in self.tail.read_new():
            print(f"{ROW_MARK}{json.dumps(row)}", flush=True)


def _say(text: str) -> None:
    print(f"slurm_rl: {text}", flush=True)


def _copy(source: IO[bytes], log: IO[bytes]) -> None:
    for line in iter(source.readline, b""):
        if not log.closed:
            # A trainer whose output nobody takes would wait for ever, so on a full disk the log goes without.
            with contextlib.suppress(OSError):
                log.write(line)
                log.flush()
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
