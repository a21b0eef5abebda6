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
from types import FrameType
from typing import Literal

from slurm_rl.errors import SlurmRLError
from slurm_rl.node.ray_cluster import create_token, token_file
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir, RunDir, append_event, read_json, write_json
from slurm_rl.slurm.attempts import EXIT_FAILED, EXIT_FINISHED, EXIT_INTERRUPTED, AttemptEnd, Decision, decide
from slurm_rl.slurm.launch import start_local_agent

POLL_S = 0.1


def run_controller(run_dir: str) -> int:
    """Entry point for submitit; the result is the job's exit code."""
    return Controller(RunDir(run_dir)).main()


class Controller:
    """Attempts of one job, one after the other."""

    def __init__(self, run: RunDir) -> None:
        self.run_dir = run
        self.plan = JobPlan.from_json(read_json(run.plan))
        self.job_key = f"local-{os.getpid()}-{int(time.time())}"
        self.nodes: subprocess.Popen[bytes] | None = None
        self.stopped_by: Literal["", "user", "scheduler"] = ""
        self.ends: list[AttemptEnd] = []

    def main(self) -> int:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._on_user_stop)
        signal.signal(signal.SIGUSR2, self._on_scheduler_stop)
        decision: Decision = "retry"
        while decision == "retry":
            self.ends.append(self._run_attempt())
            decision = decide(self.ends, stopped_by=self.stopped_by, max_failures=self.plan.limits.max_failures)
        return self._end(decision)

    def _run_attempt(self) -> AttemptEnd:
        attempt = self.run_dir.attempt(max(self.run_dir.attempt_numbers(), default=0) + 1)
        attempt.logs.mkdir(parents=True)
        self.run_dir.point_latest_at(attempt.number)
        create_token(self.run_dir, attempt.number)
        append_event(self.run_dir, "attempt/started", attempt=attempt.number, job=self.job_key)
        start = time.monotonic()
        try:
            self.nodes = start_local_agent(self.plan, attempt, self.job_key, os.environ)
            if self.stopped_by:
                self._forward_stop()
            while self.nodes.poll() is None:
                time.sleep(POLL_S)
            end = self._read_end(attempt, self.nodes.returncode)
        except SlurmRLError as error:
            end = AttemptEnd("failed", str(error), error.exit_code, self._newest_step())
        finally:
            token_file(self.run_dir, attempt.number).unlink(missing_ok=True)
        append_event(
            self.run_dir,
            "attempt/ended",
            attempt=attempt.number,
            outcome=end.outcome,
            cause=end.cause,
            seconds=round(time.monotonic() - start, 1),
        )
        return end

    def _read_end(self, attempt: AttemptDir, status: int) -> AttemptEnd:
        step = self._newest_step()
        if attempt.outcome.is_file():
            found = read_json(attempt.outcome)
            return AttemptEnd(found["outcome"], found.get("cause", ""), found["exit_code"], step)
        errors = [
            f"{record['host']}: {record['error']}"
            for record in (read_json(path) for path in sorted(attempt.path.glob("node-*.json")))
            if "error" in record
        ]
        cause = "; ".join(errors) or f"the trainer died without a word (exit status {status}); see {attempt.logs}"
        return AttemptEnd("failed", cause, EXIT_FAILED, step)

    def _newest_step(self) -> int:
        # Names alone: whether its bytes verify is for the trainer to find out.
        steps = [
            int(m.group(1)) for p in self.run_dir.checkpoints.glob("step-*") if (m := re.match(r"step-(\d+)$", p.name))
        ]
        return max(steps, default=-1)

    def _end(self, decision: Decision) -> int:
        end = self.ends[-1]
        code = {"finish": EXIT_FINISHED, "interrupt": EXIT_INTERRUPTED}.get(decision, end.exit_code or EXIT_FAILED)
        state = {"finish": "finished", "interrupt": "interrupted"}.get(decision, "failed")
        write_json(self.run_dir.end, {"state": state, "exit_code": code, "cause": end.cause, "step": end.saved_step})
        append_event(self.run_dir, "job/ended", state=state, cause=end.cause)
        return code

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
