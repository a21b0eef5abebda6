"""Controller and allocation of a run on an existing Ray cluster. Standard library only.

Ray starts `main` on the head node, in the working directory that submit sent. SIGTERM (`cancel`, `ray job stop`)
reaches the trainer directly: Ray sends it to all processes of the job. There is no agent. The trainer's output and the
rows of its metrics also go to the job's log, which may be the only file that the submitter can read.
"""

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from slurm_rl import __version__
from slurm_rl.errors import BringUpError, ConfigError, RunDirError, SlurmRLError
from slurm_rl.launch.controller.allocation import IsStopped, Nodes, UnscheduledAllocation
from slurm_rl.launch.controller.record import ROW_MARK
from slurm_rl.launch.controller.supervisor import drive
from slurm_rl.node.driver import may_signal
from slurm_rl.node.image_report import PACKAGES, collect_report
from slurm_rl.node.processes import die_with_parent
from slurm_rl.plan.compat import find_mismatches
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.jsonl import RowTail
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, read_json, write_json, write_text

SHIPPED = Path("run")
"""Folder of the config and the plan in the working directory."""


class RayAllocation(UnscheduledAllocation):
    """See `Allocation`. An attempt needs no secret."""

    num_agents = 1

    def start(self, attempt: AttemptDir, is_stopped: IsStopped) -> Nodes | None:
        return RayTrainer(self.run_dir, self.plan, attempt)


class RayTrainer:
    """The trainer, as `Nodes`."""

    def __init__(self, run: RunDir, plan: JobPlan, attempt: AttemptDir) -> None:
        self.returncode: int | None = None
        self._attempt, self._rows = attempt, RowTail(run.metrics, from_end=True)
        self._asked_at: float | None = None
        # `read_end` learns from the record that the trainer had started.
        self._record = {"host": socket.gethostname(), "pid": os.getpid(), "rank": 0}
        self._write_record("running")
        argv = [*plan.driver_argv, "--attempt", str(attempt.number)]
        log = attempt.log("driver")
        # In the session of the job: Ray signals its processes. If the controller is killed, the trainer saves.
        leave = functools.partial(die_with_parent, signal.SIGUSR2, os.getpid())
        with log.open("wb") as out:
            try:
                self._child = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, preexec_fn=leave)
            except OSError as error:
                raise BringUpError("the trainer must start", seen=f"{argv[0]}: {error.strerror}") from None
        self._log, self._shown = log, 0

    def poll(self) -> int | None:
        if self.returncode is not None:
            return self.returncode
        status = self._child.poll()
        self._print_log()
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

    def _print_log(self) -> None:
        with self._log.open("rb") as file:
            file.seek(self._shown)
            text = file.read()
        self._shown += len(text)
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()


def main(job_id: str) -> int:
    """Run the job and return its exit code."""
    try:
        plan = JobPlan.from_json(read_json(SHIPPED / "plan.json"))
        print(f"slurm_rl {__version__} from {Path(__file__).parents[3]} on {socket.gethostname()}", flush=True)
        check_versions(plan)
        run = open_run(plan)
        return drive(run, plan, RayAllocation(run, plan, job_id))
    except SlurmRLError as error:
        print(f"slurm_rl: {error}", file=sys.stderr, flush=True)
        return error.exit_code


def check_versions(plan: JobPlan) -> None:
    """Raise ConfigError if the cluster's image has other versions than the trainer needs."""
    expected = {name: plan.expected[name] for name in ("python", *PACKAGES) if name in plan.expected}
    wrong = find_mismatches(collect_report()["versions"], expected, "none")
    if wrong:
        raise ConfigError(
            f"the Ray cluster's image must have what the trainer needs (on {socket.gethostname()})",
            seen="; ".join(f"{item.name} is {item.seen or 'not there'}, expected {item.expected}" for item in wrong),
            action="create the cluster from an image of containers/, or one with `pip install .[cuda]`",
        )


def open_run(plan: JobPlan) -> RunDir:
    """Create or open the run directory. Raises RunDirError if it cannot be written or holds another run."""
    run, mine = RunDir(plan.run_dir), read_json(SHIPPED / "plan.json")
    if run.plan.is_file() and read_json(run.plan) != mine:
        raise RunDirError("run_dir must not contain another run", seen=plan.run_dir, action="choose another run_dir")
    try:
        run.secrets.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not run.config.is_file():
            write_text(run.config, (SHIPPED / "config.yaml").read_text(encoding="utf-8"))
        if not run.plan.is_file():
            write_json(run.plan, mine)
    except OSError as error:
        raise RunDirError(
            "the Ray cluster must be able to write the run directory",
            seen=f"{plan.run_dir} on {socket.gethostname()} ({error.strerror})",
            action="set cluster.remote_root to a folder that all its nodes see and may write",
        ) from error
    return run


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
