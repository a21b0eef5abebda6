"""submitit's executors with our own start of the process, and our own sbatch command line and script.

submitit writes the pickle and its folder, names the logs, and provides the Job object.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from submitit.local.local import LocalExecutor
from submitit.slurm.slurm import SlurmExecutor

from slurm_rl.launch.slurm.commands import submit
from slurm_rl.launch.slurm.exclude import with_dependency
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.sbatch import controller_command, render_batch_script, submission_argv
from slurm_rl.run_dir.run_dir import write_text

# submitit's controller ends a job after its time limit; ours has none.
_FOREVER_S = 60 * 60 * 24 * 365
_ONE_TASK = {"NTASKS": "1", "NODEID": "0", "JOB_NUM_NODES": "1", "WITH_SHELL": "", "SIGNAL_DELAY_S": "30"}


class SessionExecutor(LocalExecutor):
    """Starts `python -m submitit.local._local <folder>`, which runs one task, in its own session.

    Args:
        folder: for the pickle and the log.
        env: overrides variables of this process.
    """

    def __init__(self, folder: Path, env: Mapping[str, str], num_gpus: int) -> None:
        super().__init__(folder)
        self.env, self.num_gpus = env, num_gpus

    # Overridden because submitit's process shares the session, output and environment of the caller, and ends with it.
    def _submit_command(self, command: str) -> Any:
        ours = {**_ONE_TASK, "COMMAND": command, "TIMEOUT_S": str(_FOREVER_S)}
        env = {
            **os.environ,
            **self.env,
            **{f"SUBMITIT_LOCAL_{name}": value for name, value in ours.items()},
            "SUBMITIT_STDERR_TO_STDOUT": "1",
            "SUBMITIT_EXECUTOR": "local",
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(self.num_gpus))),
        }
        argv = [sys.executable, "-m", "submitit.local._local", str(self.folder)]
        with (self.folder / "start.log").open("ab") as log:
            process = subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return self.job_class(folder=self.folder, job_id=str(process.pid), process=process, tasks=[0])


class PlanExecutor(SlurmExecutor):
    """Submits the controller of a run."""

    def __init__(self, plan: JobPlan) -> None:
        super().__init__(folder=Path(plan.run_dir) / "submitit")
        self.plan = plan
        self.parameters = {"time": plan.limits.time_limit_min or 60 * 24, "nodes": 1, "ntasks_per_node": 1}

    # Overridden because submitit looks for srun, which login nodes may lack.
    @classmethod
    def affinity(cls) -> int:
        return 1

    # Overridden because others must not write the pickle: it runs code as its reader.
    def submit(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        saved = os.umask(0o077)
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            os.umask(saved)

    # Overridden because submitit's script has srun and its own options; ours has the setup, the container and --signal.
    def _submit_command(self, command: str) -> Any:
        script = Path(self.plan.run_dir) / "submitit" / "job.sh"
        write_text(script, render_batch_script(self.plan, controller_command(self.plan, self.plan.host_python)))
        options = with_dependency(self.plan.sbatch, self.plan.after)
        job_id = submit([*submission_argv(replace(self.plan, sbatch=options)), str(script)])
        return self.job_class(folder=self.folder, job_id=job_id, tasks=[0])
