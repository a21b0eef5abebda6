"""submitit's local executor, with a process that outlives whoever started it.

submitit keeps what it is good at: the pickle with the callable, its place on disk, the log, the Job object. Its own
start leaves the process in the caller's session, with whose terminal or notebook it ends, gives it the caller's output,
so that whoever reads that waits for the end of the run, and takes its environment from the whole process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from submitit.local.local import LocalExecutor

# submitit's controller ends a job after its time limit; ours has none.
_FOREVER_S = 60 * 60 * 24 * 365
_ONE_TASK = {"NTASKS": "1", "NODEID": "0", "JOB_NUM_NODES": "1", "WITH_SHELL": "", "SIGNAL_DELAY_S": "30"}


class SessionExecutor(LocalExecutor):
    """Starts `python -m submitit.local._local <folder>`, which runs one task, in a session of its own.

    Args:
        folder: for the pickle and the log.
        env: goes over this process's environment.
    """

    def __init__(self, folder: Path, env: Mapping[str, str], num_gpus: int) -> None:
        super().__init__(folder)
        self.env, self.num_gpus = env, num_gpus

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
