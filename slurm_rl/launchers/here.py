"""Jobs whose controller is a process of the machine that submits. submitit starts it; the job's id is its number."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from slurm_rl.errors import RunDirError
from slurm_rl.holder import Holder
from slurm_rl.job.allocation import Allocation, TimeLimit
from slurm_rl.job.create import snapshot_environment
from slurm_rl.job.record import SILENT_END, Job, RunState
from slurm_rl.launchers.base import Launcher, Submitted, load_entry
from slurm_rl.node.processes import all_pids
from slurm_rl.plan.container import Wrapped
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.step import with_host_setup
from slurm_rl.run_dir import RunDir

LOCAL_JOB_VARIABLE = "SUBMITIT_LOCAL_JOB_ID"
"""In such a controller: the number of the process that `submit` started."""
_FIRST = b"submitit.local._local"
# submitit's local launcher ends a job after its time limit; ours has none.
_FOREVER_MIN = 60 * 24 * 365.0


class HereAllocation(Allocation):
    """What all of them have."""

    def __init__(self, run: RunDir, plan: JobPlan) -> None:
        self.run_dir, self.plan = run, plan
        self.job_key = f"local-{os.getpid()}-{int(time.time())}"
        self._limit = TimeLimit(plan)
        job_id = os.environ.get(LOCAL_JOB_VARIABLE)
        self.job = {"launcher": plan.launcher, "job_id": job_id, "host": socket.gethostname()} if job_id else None

    @property
    def notice(self) -> str | None:
        return self._limit.notice

    def holder(self) -> Holder:
        return Holder.of_this_process(self.plan.launcher, self.job["job_id"] if self.job else self.job_key)


class HereLauncher(Launcher):
    """Submits to this machine."""

    def submit(self, run: RunDir, plan: JobPlan) -> Submitted:
        import submitit

        executor = submitit.LocalExecutor(folder=run.submitit)
        executor.update_parameters(
            timeout_min=_FOREVER_MIN, stderr_to_stdout=True, gpus_per_node=plan.gpus_per_node, name=plan.name
        )
        with _environment_of_the_job(run), _without_sigint():
            job = executor.submit(load_entry(), str(run.path))
        return Submitted(str(job.job_id), {"host": socket.gethostname()}, process=job)

    def cancel_unseen(self, run: RunDir) -> list[str]:
        asked = []
        for pid in filter(lambda pid: _is_controller(pid, os.fsencode(run.path)), all_pids()):
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

    def build_probe(self, plan: JobPlan, wrapped: Wrapped, timeout_s: float) -> list[str]:
        return with_host_setup(plan, wrapped.argv)


def _read_state(job: Job) -> RunState:
    if is_elsewhere(job):
        return RunState("unknown", f"its controller is a process of {job.host}; ask there")
    return RunState("running", is_alive=True) if is_process_alive(job) else RunState("dead", SILENT_END)


def is_elsewhere(job: Job) -> bool:
    """Its controller is a process of another machine, so that its number says nothing to us."""
    return job.host is not None and job.host != socket.gethostname()


def is_process_alive(job: Job) -> bool:
    """Whether it is the process that submitit started: the number may have been given to somebody else since."""
    try:
        words = Path(f"/proc/{job.job_id}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return str(job.run.submitit).encode() in words


@contextlib.contextmanager
def _environment_of_the_job(run: RunDir) -> Iterator[None]:
    """The job imports the snapshot: a child's environment is ours at its birth."""
    changed = snapshot_environment(run)
    saved = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _without_sigint() -> Iterator[None]:
    """Children born here ignore Ctrl-C: the foreground command hears it and asks the job to save."""
    saved = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, saved)


def _is_controller(pid: int, path: bytes) -> bool:
    """Whether this is the first process of a run in this folder, or below it."""
    try:
        if Path("/proc", str(pid)).stat().st_uid != os.getuid():
            return False
        words = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return _FIRST in words and any(word.startswith(path + b"/") and word.endswith(b"/submitit") for word in words)
