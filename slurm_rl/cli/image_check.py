"""`image check`: the image, started as a run would start it, held against what the plan expects."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from slurm_rl.cli.common import compose_run
from slurm_rl.launchers.image_check import check_image
from slurm_rl.launchers.launch import agent_environment
from slurm_rl.launchers.submit import snapshot_code
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.judge import render_versions
from slurm_rl.plan.sbatch import sbatch_argv
from slurm_rl.plan.step import with_host_setup, wrap_report

# Where a job may run and what a node must have; the rest is the batch job's own business.
_OPTIONS = ("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude", "gres", "gpus-per-node")


def run_check(words: list[str], *, config_dir: str | None, timeout_s: float) -> int:
    """Ask one node (this machine, for the local launcher) and print what is in the image.

    Raises:
        ConfigError: something is not as expected; each with its remedy.
    """
    _, plan, directory = compose_run(words, config_dir, is_run=False)
    # Where the run directory would be: a folder that nodes see, when runs are to work.
    root = directory.path.parent
    root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".image-check-", dir=root))
    try:
        snapshot_code(folder / "code")
        report = _ask(plan, folder, timeout_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"image   {plan.container['image'] or 'no container'} on {report['host']}: as expected")
    print(render_versions(report["versions"], plan.expected))
    return 0


def _ask(plan: JobPlan, folder: Path, timeout_s: float) -> dict[str, Any]:
    wrapped = wrap_report(plan, str(folder), f"srl-check-{secrets.token_hex(4)}", (os.getuid(), os.getgid()))
    argv = with_host_setup(plan, wrapped.argv)
    if plan.launcher == "slurm":
        print("image   waiting for a node", file=sys.stderr, flush=True)
        argv = [*srun_of_its_own(plan, timeout_s), *wrapped.srun_args, *argv]
    env = agent_environment(plan, os.environ, wrapped)
    return check_image(plan, argv, env, timeout_s=timeout_s)


def srun_of_its_own(plan: JobPlan, timeout_s: float) -> list[str]:
    """srun that makes a job of one node and one task, where the run's job would be let in."""
    chosen = {name: plan.sbatch[name] for name in _OPTIONS if name in plan.sbatch}
    minutes = max(1, round(timeout_s / 60))
    return [
        *("srun", "--nodes=1", "--ntasks=1", "--mpi=none", "--job-name=slurm_rl-image-check", f"--time={minutes}"),
        *sbatch_argv(chosen),
    ]
