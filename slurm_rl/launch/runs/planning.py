"""Plan and run directory of a config."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from slurm_rl import __version__
from slurm_rl.config.paths import expand_user
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.find import parse_path
from slurm_rl.launch.runs.model_shape import find_shape, find_shape_at
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir


def choose_directory(config: RunConfig) -> RunDir:
    """Return `run_dir`, or <run_root>/<name>-<time> with a number if it exists; write nothing."""
    if config.run_dir:
        return RunDir(config.run_dir)
    base = Path(config.cluster.run_root) / f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = parse_path(str(base)), 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return RunDir(path)


def plan_in(config: RunConfig, run: RunDir) -> JobPlan:
    """Return the plan of a run in this directory. Raises ConfigError for an impossible layout."""
    path = str(run.path)
    parse_path(path)
    # No file format or log line on the way could hold it.
    if not path.isprintable():
        raise ConfigError(
            "run_dir must be printable, without line breaks and control characters",
            seen=ascii(path),
            action="choose another run_dir",
        )
    facts = SubmitFacts(
        python=sys.executable,
        num_cpus=len(os.sched_getaffinity(0)),
        version=__version__,
        model_shape=find_shape(config.model),
        reward_shape=find_shape_at(config.reward.model.path) if config.reward.services_on_gpus else None,
        reference_shape=find_shape_at(config.reference.path),
    )
    root = config.cluster.remote_root
    plan = build_plan(config, path if root is None else str(Path(root) / run.path.name), facts)
    return plan if plan.after is None else replace(plan, after=str(expand_user(plan.after).absolute()))
