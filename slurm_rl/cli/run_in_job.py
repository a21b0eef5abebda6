"""`run-in-job`: run in the current Slurm allocation, from plain sbatch or salloc.

The allocation determines nodes, GPUs and cores. The name of the run directory contains the job's id, so that a requeue,
which runs the same script again, resumes the same run.
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from slurm_rl.cli.common import check_overrides
from slurm_rl.cli.output import note
from slurm_rl.config.load import compose
from slurm_rl.config.parse import parse_config
from slurm_rl.config.preset_folders import shipped_dir
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.controller.create import create_run, snapshot_environment
from slurm_rl.launch.controller.record import record_job
from slurm_rl.launch.runs.checks import check_inputs
from slurm_rl.launch.runs.find import remember
from slurm_rl.launch.runs.start import plan_in
from slurm_rl.launch.slurm.granted import GrantedJob, read_allocation
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir, read_json

TEMPLATE = "job.sbatch"


def run(args: argparse.Namespace) -> int:
    if args.print_template:
        print((shipped_dir("sbatch_templates", TEMPLATE) / TEMPLATE).read_text(encoding="utf-8"), end="")
        return 0
    allocation = read_allocation(os.environ)
    config = _configure(args, allocation)
    directory = RunDir(config.run_dir or Path(config.cluster.run_root) / f"{config.name}-{allocation.job_id}")
    if not _is_ours(directory, allocation):
        plan = _with_the_jobs_options(plan_in(config, directory), allocation)
        check_inputs(config, note)
        create_run(directory, config, plan, again=allocation.num_restarts > 0)
        record_job(directory, "slurm", allocation.job_id)
        remember(directory.path, [allocation.job_id])
    _announce(directory, allocation)
    return exec_controller(directory)


def _configure(args: argparse.Namespace, allocation: GrantedJob) -> RunConfig:
    """Return the config with the numbers of the allocation in place of those of the preset."""
    overrides = [*check_overrides(args.rest), "cluster.launcher=slurm"]
    tree = compose(overrides, config_dir=args.config_dir)
    on_cpu = tree["cluster"]["accelerator"] == "cpu"
    if not on_cpu and allocation.gpus_per_node == 0:
        raise ConfigError(
            f"a run with accelerator {tree['cluster']['accelerator']!r} needs GPUs in the allocation",
            seen="SLURM_GPUS_ON_NODE is not set",
            action="sbatch --gpus-per-node=<n> ..., or +cluster=slurm_cpu",
        )
    if tree["cluster"]["nodes"]:
        raise ConfigError(
            "`run-in-job` does not support node groups",
            seen=f"cluster.nodes with {', '.join(tree['cluster']['nodes'])}",
            action="use `submit` (one job component per kind), or add '~cluster.nodes'",
        )
    tree["cluster"] |= {
        "num_nodes": allocation.num_nodes,
        # With --exclusive Slurm grants GPUs that a CPU run has no use for.
        "gpus_per_node": 0 if on_cpu else allocation.gpus_per_node,
        "cpus_per_node": allocation.cpus_per_node,
    }
    return parse_config(tree, is_run=True)


def _is_ours(directory: RunDir, allocation: GrantedJob) -> bool:
    """Return whether an earlier start of this job created the run; Slurm reuses ids, so a first start did not."""
    if allocation.num_restarts == 0 or not directory.plan.is_file() or not directory.job.is_file():
        return False
    return bool(read_json(directory.job)["job_id"] == allocation.job_id)


def _with_the_jobs_options(plan: JobPlan, allocation: GrantedJob) -> JobPlan:
    """Return the plan for `resume`, with the partition, account and QOS of this job."""
    known = {"partition": allocation.partition, "account": allocation.account, "qos": allocation.qos}
    # Without accounting Slurm calls the account (null).
    found = {name: value for name, value in known.items() if value and value != "(null)"}
    return replace(plan, sbatch={**found, **plan.sbatch})


def _announce(directory: RunDir, allocation: GrantedJob) -> None:
    granted = f"{allocation.num_nodes} nodes, {allocation.cpus_per_node} cores"
    granted += f" and {allocation.gpus_per_node} GPUs each" if allocation.gpus_per_node else " each"
    note(f"run     {directory.path}\njob     {allocation.job_id} ({granted})")


def exec_controller(directory: RunDir) -> NoReturn:
    """Replace this process by the controller, which runs the snapshot of the code."""
    python = JobPlan.from_json(read_json(directory.plan)).host_python
    env = {**os.environ, **snapshot_environment(directory)}
    os.execve(python, [python, "-u", "-m", "slurm_rl.launch.jobs", str(directory.path)], env)
