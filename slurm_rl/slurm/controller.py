"""The controller: outside any container, it starts attempts of a run until one settles it.

submitit calls `run_controller` with the run directory's path and nothing else, so a requeue that
replays the old pickle loses nothing: all state is in the run directory.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from dataclasses import asdict, replace
from types import FrameType
from typing import Literal

from slurm_rl.errors import BringUpError, SlurmRLError, SubmitError
from slurm_rl.node.ray_cluster import create_token, ray_tmp_dir, token_file
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir, RunDir, append_event, read_json, write_json
from slurm_rl.slurm import commands
from slurm_rl.slurm.attempts import EXIT_FAILED, EXIT_FINISHED, EXIT_INTERRUPTED, AttemptEnd, Decision, decide
from slurm_rl.slurm.launch import srun_argv, start_local_agent, start_slurm_agents
from slurm_rl.slurm.preflight import remove_leftovers, run_preflight

POLL_S = 0.1
_REQUEUE_DEADLINE_S = 60.0


def run_controller(run_dir: str) -> int:
    """Entry point for submitit; the result is the job's exit code."""
    return Controller(RunDir(run_dir)).main()


class Controller:
    """Attempts of one job, one after the other."""

    def __init__(self, run: RunDir) -> None:
        self.run_dir = run
        self.plan = JobPlan.from_json(read_json(run.plan))
        self.job_id = os.environ.get("SLURM_JOB_ID") if self.plan.launcher == "slurm" else None
        self.job_key = self.job_id or f"local-{os.getpid()}-{int(time.time())}"
        self.nodes: subprocess.Popen[bytes] | None = None
        self.hosts: list[str] = []
        self.stopped_by: Literal["", "user", "scheduler"] = ""

    def main(self) -> int:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._on_user_stop)
        signal.signal(signal.SIGUSR2, self._on_scheduler_stop)
        self.run_dir.end.unlink(missing_ok=True)
        decision: Decision = "retry"
        while decision == "retry":
            attempt = self._begin_attempt()
            end = self._run_attempt(attempt)
            write_json(attempt.end, asdict(end))
            ends = self._earlier_ends()
            decision = decide(ends, stopped_by=self.stopped_by, max_failures=self.plan.limits.max_failures)
        return self._requeue(end) if decision == "requeue" else self._end(decision, end)

    # ---- one attempt ---------------------------------------------------------------------------

    def _begin_attempt(self) -> AttemptDir:
        attempt = self.run_dir.attempt(max(self.run_dir.attempt_numbers(), default=0) + 1)
        attempt.logs.mkdir(parents=True)
        self.run_dir.point_latest_at(attempt.number)
        create_token(self.run_dir, attempt.number)
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", 0))
        append_event(self.run_dir, "attempt/started", attempt=attempt.number, job=self.job_key, slurm_restarts=restarts)
        return attempt

    def _run_attempt(self, attempt: AttemptDir) -> AttemptEnd:
        start = time.monotonic()
        try:
            self.nodes = self._start_nodes(attempt)
            if self.stopped_by:
                self._forward_stop()
            while self.nodes.poll() is None:
                time.sleep(POLL_S)
            end = self._read_end(attempt, self.nodes.returncode)
        except SlurmRLError as error:
            end = AttemptEnd("failed", str(error), error.exit_code)
        finally:
            token_file(self.run_dir, attempt.number).unlink(missing_ok=True)
        if end.outcome == "failed" and self.hosts:
            folder = ray_tmp_dir(self.plan, self.job_key, attempt.number)
            remove_leftovers(srun_argv(self.plan, self.hosts), folder, os.environ)
        end = replace(end, saved_step=self._newest_step(), job_key=self.job_key)
        seconds = round(time.monotonic() - start, 1)
        append_event(
            self.run_dir, "attempt/ended", attempt=attempt.number, outcome=end.outcome, cause=end.cause, seconds=seconds
        )
        return end

    def _start_nodes(self, attempt: AttemptDir) -> subprocess.Popen[bytes]:
        if self.job_id is None:
            return start_local_agent(self.plan, attempt, self.job_key, os.environ)
        nodes = commands.hostnames(os.environ["SLURM_JOB_NODELIST"])
        if len(nodes) != self.plan.num_nodes:
            raise BringUpError(
                f"the run needs exactly {self.plan.num_nodes} nodes", seen=f"{len(nodes)}: {', '.join(nodes)}"
            )
        self.hosts = nodes
        run_preflight(self.plan, attempt, srun_argv(self.plan, nodes), os.environ)
        append_event(self.run_dir, "preflight/passed", attempt=attempt.number, nodes=nodes)
        return start_slurm_agents(self.plan, attempt, nodes, self.job_key, os.environ)

    def _read_end(self, attempt: AttemptDir, status: int) -> AttemptEnd:
        if attempt.outcome.is_file():
            found = read_json(attempt.outcome)
            # A trainer that saved although nobody asked was told to by a node's end; the node is the cause.
            if found["outcome"] != "checkpointed" or self.stopped_by:
                return AttemptEnd(found["outcome"], found.get("cause", ""), found["exit_code"])
        causes = [
            f"{record['host']}: {record['error']}"
            for record in (read_json(path) for path in sorted(attempt.path.glob("node-*.json")))
            if "error" in record
        ]
        causes += _srun_errors(attempt)
        cause = "; ".join(causes) or f"the trainer died without a word (exit status {status})"
        return AttemptEnd("failed", f"{cause}; see {attempt.logs}", EXIT_FAILED)

    def _newest_step(self) -> int:
        # Names alone: whether its bytes verify is for the trainer to find out.
        found = [re.fullmatch(r"step-(\d+)", path.name) for path in self.run_dir.checkpoints.glob("step-*")]
        return max((int(match.group(1)) for match in found if match), default=-1)

    def _earlier_ends(self) -> list[AttemptEnd]:
        """Ends of this job's attempts, those before a requeue included, oldest first."""
        paths = [self.run_dir.attempt(number).end for number in self.run_dir.attempt_numbers()]
        ends = [AttemptEnd(**read_json(path)) for path in paths if path.is_file()]
        return [end for end in ends if end.job_key == self.job_key]

    # ---- the end of the job --------------------------------------------------------------------

    def _end(self, decision: Decision, end: AttemptEnd) -> int:
        code = {"finish": EXIT_FINISHED, "interrupt": EXIT_INTERRUPTED}.get(decision, end.exit_code or EXIT_FAILED)
        state = {"finish": "finished", "interrupt": "interrupted"}.get(decision, "failed")
        write_json(self.run_dir.end, {"state": state, "exit_code": code, "cause": end.cause, "step": end.saved_step})
        append_event(self.run_dir, "job/ended", state=state, cause=end.cause)
        return code

    def _requeue(self, end: AttemptEnd) -> int:
        """Ask Slurm to start this job again, and wait to be ended by it."""
        if self.job_id is None:
            return self._end("interrupt", end)
        append_event(self.run_dir, "job/requeued", cause=end.cause, step=end.saved_step)
        try:
            commands.requeue(self.job_id)
        except SubmitError as error:
            # Slurm requeues a preempted job by itself and refuses a second time.
            append_event(self.run_dir, "job/requeue_refused", cause=str(error))
        self.stopped_by = ""
        deadline = time.monotonic() + _REQUEUE_DEADLINE_S
        while not self.stopped_by and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return EXIT_FINISHED

    # ---- signals -------------------------------------------------------------------------------

    def _on_user_stop(self, signum: int, frame: FrameType | None) -> None:
        self.stopped_by = "user"
        self._forward_stop()

    def _on_scheduler_stop(self, signum: int, frame: FrameType | None) -> None:
        self.stopped_by = self.stopped_by or "scheduler"
        self._forward_stop()

    def _forward_stop(self) -> None:
        """SIGUSR2 to the node agents: the head tells the trainer to save, the others stay until it has."""
        if self.nodes is not None and self.nodes.poll() is None:
            self.nodes.send_signal(signal.SIGUSR2)


def _srun_errors(attempt: AttemptDir) -> list[str]:
    """What srun said of tasks that ended badly: `srun: error: n2: task 1: Killed`."""
    path = attempt.log("srun")
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return [match.group(1) for match in re.finditer(r"^srun: error: (.*)$", text, re.MULTILINE)][:5]
