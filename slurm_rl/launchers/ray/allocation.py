"""The head of a Ray cluster that is not ours, as the controller inside it asks it.

There is no agent: the trainer itself stands in the agents' place. What it prints and every row of its metrics also go
to the job's log, which is all that the submitter may be able to see.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from slurm_rl.errors import BringUpError
from slurm_rl.holder import Holder
from slurm_rl.job.allocation import Allocation, IsStopped, Nodes, TimeLimit
from slurm_rl.job.attempts import AttemptEnd
from slurm_rl.job.record import ROW_MARK
from slurm_rl.jsonl import RowTail
from slurm_rl.node.driver import may_signal
from slurm_rl.node.processes import die_with_parent
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir, RunDir, write_json


class RayAllocation(Allocation):
    """See `Allocation`. Ray sees the exit status."""

    num_agents = 1

    def __init__(self, run: RunDir, plan: JobPlan, job_id: str) -> None:
        self.run_dir, self.plan, self.job_key = run, plan, job_id
        self._limit = TimeLimit(plan)

    @property
    def notice(self) -> str | None:
        return self._limit.notice

    def holder(self) -> Holder:
        return Holder.of_this_process(self.plan.launcher, self.job_key)

    def prepare(self, attempt: AttemptDir) -> dict[str, Any]:
        return {}

    def start(self, attempt: AttemptDir, is_stopped: IsStopped) -> Nodes | None:
        return RayTrainer(self.run_dir, self.plan, attempt)

    def settle(self, attempt: AttemptDir, status: int, *, is_late: bool) -> None:
        """The exit status says it."""

    def judge(self, attempt: AttemptDir, end: AttemptEnd) -> AttemptEnd:
        return end


class RayTrainer:
    """The trainer, as `Nodes`."""

    def __init__(self, run: RunDir, plan: JobPlan, attempt: AttemptDir) -> None:
        self.returncode: int | None = None
        # Rows of earlier attempts are known already.
        self._attempt, self._rows = attempt, RowTail(run.metrics, from_end=True)
        self._asked_at: float | None = None
        # The record by which `read_end` knows a trainer that had started.
        self._record = {"host": socket.gethostname(), "pid": os.getpid(), "rank": 0}
        self._write_record("running")
        argv = [*plan.driver_argv, "--attempt", str(attempt.number)]
        log = attempt.log("driver")
        # In the session of the job, whose processes Ray signals. If the controller is killed, it saves and leaves.
        leave = functools.partial(die_with_parent, signal.SIGUSR2, os.getpid())
        with log.open("wb") as out:
            try:
                self._child = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, preexec_fn=leave)
            except OSError as error:
                raise BringUpError("the trainer must start", seen=f"{argv[0]}: {error.strerror}") from None
        self._log = LogPrinter(log)

    def poll(self) -> int | None:
        if self.returncode is not None:
            return self.returncode
        status = self._child.poll()
        self._log.print_new()
        for row in self._rows.read_new():
            print(f"{ROW_MARK}{json.dumps(row)}", flush=True)
        if self._asked_at is not None and may_signal(self._child.pid, self._asked_at):
            self._asked_at = None
            self._child.send_signal(signal.SIGUSR2)
        if status is not None:
            self._write_record("ended")
            self.returncode = status
        return self.returncode

    def send_signal(self, sig: int, /) -> None:
        """SIGUSR2 waits for the trainer's handler; until then it would kill it."""
        if sig == signal.SIGUSR2:
            self._asked_at = time.monotonic()
        else:
            self._child.send_signal(sig)

    def terminate(self) -> None:
        self._child.terminate()

    def _write_record(self, state: str) -> None:
        phases = {"phases": {"running": round(time.time(), 3)}}
        write_json(self._attempt.node(0), {**self._record, "state": state, **phases})


class LogPrinter:
    """Prints what is added to a file."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset = path, 0

    def print_new(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            text = file.read()
        self.offset += len(text)
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
