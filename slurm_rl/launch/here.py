"""Runs with a controller on the submitting machine. submitit starts it; the job id is its pid."""

import contextlib
import os
import shlex
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_rl.errors import RunDirError
from slurm_rl.launch.controller.agents import (
    clean_here,
    settle_late_agents,
    settle_silent_agent,
    start_agent,
    start_copy_here,
)
from slurm_rl.launch.controller.allocation import IsStopped, Nodes, UnscheduledAllocation
from slurm_rl.launch.controller.attempts import AttemptEnd
from slurm_rl.launch.controller.create import snapshot_environment
from slurm_rl.launch.controller.record import SILENT_END, Job, RunState
from slurm_rl.launch.protocol import Launcher, Submitted, load_entry
from slurm_rl.node.processes import all_pids, command_line
from slurm_rl.plan.container import Wrapped
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.step import with_host_setup
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir
from slurm_rl.run_dir.run_secret import create_token

LOCAL_JOB_VARIABLE = "SUBMITIT_LOCAL_JOB_ID"
"""Environment variable of such a controller: pid of the process that submitit started."""
_FIRST = b"submitit.local._local"


class HereAllocation(UnscheduledAllocation):
    """Base of allocations with a controller on the submitting machine."""

    def __init__(self, run: RunDir, plan: JobPlan) -> None:
        super().__init__(run, plan, f"local-{os.getpid()}-{int(time.time())}")
        job_id = os.environ.get(LOCAL_JOB_VARIABLE)
        self.job = {"launcher": plan.launcher, "job_id": job_id, "host": socket.gethostname()} if job_id else None

    def start_copy(self, attempt: AttemptDir) -> Nodes | None:
        return start_copy_here(self.plan, attempt, self.job_key, os.environ)


class LocalAllocation(HereAllocation):
    """Allocation of a local run: this machine. See `Allocation`."""

    num_agents = 1

    def prepare(self, attempt: AttemptDir) -> dict[str, Any]:
        if self.plan.torchrun is None:
            create_token(self.run_dir, attempt.number)
        return {}

    def start(self, attempt: AttemptDir, is_stopped: IsStopped) -> Nodes | None:
        return None if is_stopped() else start_agent(self.plan, attempt, 0, (), self.job_key, os.environ)

    def settle(self, attempt: AttemptDir, status: int, *, is_late: bool) -> None:
        if is_late:
            settle_late_agents(self.plan, attempt, [socket.gethostname()])
        settle_silent_agent(self.plan, attempt, 0, socket.gethostname(), attempt.log("node-0"), status)

    def judge(self, attempt: AttemptDir, end: AttemptEnd) -> AttemptEnd:
        clean_here(self.run_dir, self.plan, attempt, self.job_key)
        return end


class HereLauncher(Launcher):
    """Runs the controller as a process of this machine."""

    def submit(self, run: RunDir, plan: JobPlan) -> Submitted:
        from slurm_rl.launch.executors import SessionExecutor

        executor = SessionExecutor(run.submitit, snapshot_environment(run), plan.gpus_per_node)
        job = executor.submit(load_entry(), str(run.path))
        return Submitted(str(job.job_id), {"host": socket.gethostname()}, process=job)

    def cancel_unseen(self, run: RunDir) -> list[str]:
        asked, path = [], os.fsencode(os.path.abspath(run.path))  # noqa: PTH100  # it only removes `..`
        for pid in filter(lambda pid: _is_controller(pid, path), all_pids()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
                asked.append(f"process {pid}")
        return asked

    def read_states(self, jobs: Sequence[Job]) -> list[RunState]:
        return [_read_state(job) for job in jobs]

    def cancel(self, jobs: Sequence[Job]) -> int:
        for job in jobs:
            if is_elsewhere(job):
                raise RunDirError(
                    "a run without Slurm is cancelled on the machine of its controller",
                    seen=f"this is {socket.gethostname()}, it was started on {job.host}",
                    action=f"there: python -m slurm_rl cancel {shlex.quote(str(job.run.path))}",
                )
        alive = [job for job in jobs if is_process_alive(job)]
        for job in alive:
            os.kill(int(job.job_id), signal.SIGTERM)
        return len(alive)

    def build_probe(self, plan: JobPlan, wrapped: Wrapped, timeout_s: float, *, num_nodes: int = 1) -> list[str]:
        return with_host_setup(plan, wrapped.argv)


def _read_state(job: Job) -> RunState:
    if is_elsewhere(job):
        return RunState("unknown", f"its controller is a process of {job.host}; ask there")
    return RunState("running", is_alive=True) if is_process_alive(job) else RunState("dead", SILENT_END)


def is_elsewhere(job: Job) -> bool:
    """Return True if the controller runs on another machine, where its pid has no meaning here."""
    return job.host is not None and job.host != socket.gethostname()


def is_process_alive(job: Job) -> bool:
    """Return True if the pid is still the process that submitit started, since pids are reused."""
    words = command_line(job.job_id)
    if os.fsencode(job.run.submitit) in words:
        return True  # without a look at the folder, which may hang
    folders = [Path(os.fsdecode(word)) for word in words if word.endswith(b"/submitit")]
    return any(folder.resolve() == job.run.submitit.resolve() for folder in folders)


def _is_controller(pid: int, path: bytes) -> bool:
    """Return True if `pid` is the controller of a run in the folder `path` or below it."""
    try:
        if Path("/proc", str(pid)).stat().st_uid != os.getuid():
            return False
    except OSError:
        return False
    words = command_line(pid)
    return _FIRST in words and any(word.startswith(path + b"/") and word.endswith(b"/submitit") for word in words)
