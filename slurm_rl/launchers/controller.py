"""Which allocation the controller of a run asks for its machines."""

from __future__ import annotations

from collections.abc import Callable

from slurm_rl.job.allocation import Allocation
from slurm_rl.job.attempts import EXIT_FAILED
from slurm_rl.job.controller import Controller
from slurm_rl.job.ends import newest_step
from slurm_rl.job.supervisor import EXIT_KILLED, Supervisor
from slurm_rl.launchers.holding import own_epoch
from slurm_rl.launchers.local.allocation import LocalAllocation
from slurm_rl.launchers.machines.allocation import MachineAllocation
from slurm_rl.launchers.slurm.allocation import SlurmAllocation
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import RunDir, append_event, read_json, write_last

_CLEANING_S = 20.0


def drive_run(run_dir: str) -> int:
    """Drive the run to its end; the job's exit code."""
    run = RunDir(run_dir)
    plan = JobPlan.from_json(read_json(run.plan))
    return _RUNNERS[plan.launcher](run, plan)


def _run_supervised(run: RunDir, plan: JobPlan) -> int:
    def note(how: str) -> None:
        run.epoch = own_epoch(run, plan)
        append_event(run, "controller/killed", by=how)

    # Told to leave, the trainer may take as long as before a time limit.
    patience_s = plan.limits.signal_lead_s + _CLEANING_S
    work = _run(SlurmAllocation)
    status = Supervisor(lambda: work(run, plan), patience_s=patience_s, on_death=note).main()
    if status == EXIT_KILLED:
        cause = "its controller was killed again and again; see dmesg for the kernel's reason"
        end = {"state": "failed", "exit_code": EXIT_FAILED, "cause": cause, "step": newest_step(run)}
        write_last(run, run.end, end)
        return EXIT_FAILED
    return status


def _run(open_allocation: Callable[[RunDir, JobPlan], Allocation]) -> Callable[[RunDir, JobPlan], int]:
    return lambda run, plan: Controller(run, plan, open_allocation(run, plan)).main()


_RUNNERS = {"slurm": _run_supervised, "local": _run(LocalAllocation), "machines": _run(MachineAllocation)}
"""One row a launcher; inside a Ray cluster of others it is ray/inside.py that is started."""
