"""The controller's part inside a Ray cluster that is not ours.

Ray starts it on the head node, in the working directory that submit shipped. It makes the run directory and hands it to
the controller. Standard library alone, since external trainers run in images of their own.

SIGTERM (`cancel`, `ray job stop`) reaches the trainer by itself: Ray sends it to all processes of the job.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from slurm_rl import __version__
from slurm_rl.errors import ConfigError, RunDirError, SlurmRLError
from slurm_rl.job.supervisor import drive
from slurm_rl.launchers.ray.allocation import RayAllocation
from slurm_rl.node.image_report import PACKAGES, collect_report
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.judge import find_mismatches
from slurm_rl.run_dir import RunDir, read_json, write_json, write_text

SHIPPED = Path("run")
"""Folder of the config and the plan in the working directory."""


def main(job_id: str) -> int:
    """Run attempts until one settles the run; the job's exit code."""
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
    """Refuse a cluster whose image lacks what the trainer needs; drivers and GPUs are the workers' affair.

    Raises:
        ConfigError: every mismatch by its name.
    """
    expected = {name: plan.expected[name] for name in ("python", *PACKAGES) if name in plan.expected}
    wrong = find_mismatches(collect_report()["versions"], expected, "none")
    if wrong:
        raise ConfigError(
            f"the Ray cluster's image must have what the trainer needs (on {socket.gethostname()})",
            seen="; ".join(f"{item.name} is {item.seen or 'not there'}, expected {item.expected}" for item in wrong),
            action="make the cluster from an image of containers/, or one with `pip install .[cuda]`",
        )


def open_run(plan: JobPlan) -> RunDir:
    """The trainer's run directory: new, or that of the same run.

    Raises:
        RunDirError: it cannot be written, or another run is there.
    """
    run, mine = RunDir(plan.run_dir), read_json(SHIPPED / "plan.json")
    if run.plan.is_file() and read_json(run.plan) != mine:
        raise RunDirError("run_dir must not hold another run", seen=plan.run_dir, action="choose another run_dir")
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
