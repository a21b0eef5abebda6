"""A job from its start to its exit code: a controller, kept by a process that does nothing else."""

from __future__ import annotations

from slurm_rl.job.allocation import Allocation
from slurm_rl.job.attempts import EXIT_FAILED
from slurm_rl.job.controller import Controller
from slurm_rl.job.ends import newest_step
from slurm_rl.job.holding import own_epoch
from slurm_rl.job.supervisor import EXIT_KILLED, Supervisor
from slurm_rl.node.tmp_dir import remove_tmp_dirs
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import RunDir, append_event, write_last

_CLEANING_S = 20.0


def drive(run: RunDir, plan: JobPlan, allocation: Allocation) -> int:
    """Drive the run to its end on these machines; the job's exit code."""

    def note(how: str) -> None:
        run.epoch = own_epoch(run, allocation.holder())
        append_event(run, "controller/killed", by=how)

    status = Supervisor(
        Controller(run, plan, allocation).main,
        run.path,
        # Told to leave, the trainer may take as long as before a time limit.
        patience_s=plan.limits.signal_lead_s + _CLEANING_S,
        on_death=note,
        on_hang=allocation.abandon,
        # Other nodes are cleaned by the run's next attempt on them.
        clean_up=lambda: remove_tmp_dirs(plan),
    ).main()
    if status == EXIT_KILLED:
        cause = "its controller was killed again and again; see dmesg for the kernel's reason"
        end = {"state": "failed", "exit_code": EXIT_FAILED, "cause": cause, "step": newest_step(run)}
        write_last(run, run.end, end)
        return EXIT_FAILED
    return status
