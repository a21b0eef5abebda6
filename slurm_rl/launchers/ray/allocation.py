"""The head of a Ray cluster that is not ours, as the controller inside it asks it.

There is no agent: the trainer itself stands in the agents' place. What it prints and every row of its metrics also go
to the job's log, which is all that the submitter may be able to see.
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
from pathlib import Path
from typing import IO, Any

from slurm_rl.disk import say
from slurm_rl.errors import BringUpError
from slurm_rl.holder import Holder
from slurm_rl.job.allocation import IsStopped, Nodes
from slurm_rl.job.attempts import AttemptEnd
from slurm_rl.jsonl import RowTail
from slurm_rl.launchers.ray.submit import ROW_MARK
from slurm_rl.lease import Lease, take
from slurm_rl.node.driver import may_signal
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir, RunDir, write_json

# After the trainer: a child of its own may hold the pipe open.
_OUTPUT_S = 5.0


class RayAllocation:
    """See `Allocation`."""

    can_requeue = False
    has_nodes = True
    num_agents = 1

    def __init__(self, run: RunDir, plan: JobPlan, job_id: str) -> None:
        self.run_dir, self.plan, self.job_key = run, plan, job_id
        limit, lead_s = plan.limits.time_limit_min, plan.limits.signal_lead_s
        # Ray knows no time limit of a job.
        self._leave_at = float("inf") if limit is None else time.monotonic() + max(0.0, limit * 60.0 - lead_s)

    @property
    def notice(self) -> str | None:
        return "job.time_limit is near" if time.monotonic() > self._leave_at else None

    def take(self, is_stopped: IsStopped) -> Lease:
        own = Holder.of_this_process(self.plan.launcher, self.job_key)
        lease = take(self.run_dir.lease, own, is_stopped=is_stopped, on_wait=say)
        self.run_dir.epoch = lease.epoch
        return lease

    def prepare(self, attempt: AttemptDir) -> dict[str, Any]:
        return {}

    def start(self, attempt: AttemptDir, is_stopped: IsStopped) -> Nodes | None:
        return RayTrainer(self.run_dir, self.plan, attempt)

    def settle(self, attempt: AttemptDir, status: int, *, is_late: bool) -> None:
        """The exit status says it."""

    def judge(self, attempt: AttemptDir, end: AttemptEnd) -> AttemptEnd:
        return end

    def granted_at(self) -> float | None:
        return None

    def requeue(self, is_ended: IsStopped) -> str | None:
        raise NotImplementedError("Ray starts no job again")

    def close(self, end: dict[str, Any]) -> None:
        """Ray sees the exit status."""


class RayTrainer:
    """The trainer, as `Nodes`."""

    def __init__(self, run: RunDir, plan: JobPlan, attempt: AttemptDir) -> None:
        self.returncode: int | None = None
        self._attempt, self._rows = attempt, RowPrinter(run.metrics)
        self._asked_at: float | None = None
        # The record by which `read_end` knows a trainer that had started.
        self._record = {"host": socket.gethostname(), "pid": os.getpid(), "rank": 0}
        self._write_record("running")
        argv = [sys.executable, *plan.driver_argv[1:], "--attempt", str(attempt.number)]
        self._log = attempt.log("driver").open("wb")
        try:
            self._child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except OSError as error:
            raise BringUpError("the trainer must start", seen=f"{argv[0]}: {error.strerror}") from None
        assert self._child.stdout is not None
        self._copier = threading.Thread(target=_copy, args=(self._child.stdout, self._log), daemon=True)
        self._copier.start()

    def poll(self) -> int | None:
        if self.returncode is not None:
            return self.returncode
        status = self._child.poll()
        self._rows.print_new()
        if self._asked_at is not None and may_signal(self._child.pid, self._asked_at):
            self._asked_at = None
            self._child.send_signal(signal.SIGUSR2)
        if status is not None:
            self._copier.join(_OUTPUT_S)
            self._log.close()
            self._rows.print_new()
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


class RowPrinter:
    """Prints the rows that are added to a file; those of earlier attempts are known already."""

    def __init__(self, path: Path) -> None:
        self.tail = RowTail(path, from_end=True)

    def print_new(self) -> None:
        for row in self.tail.read_new():
            print(f"{ROW_MARK}{json.dumps(row)}", flush=True)


def _copy(source: IO[bytes], log: IO[bytes]) -> None:
    for line in iter(source.readline, b""):
        if not log.closed:
            # A trainer whose output nobody takes would wait for ever, so on a full disk the log goes without.
            with contextlib.suppress(OSError):
                log.write(line)
                log.flush()
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
