"""Runs over machines that nobody schedules: the head's `node` submits to itself, the others come."""

from __future__ import annotations

from slurm_rl.errors import ConfigError
from slurm_rl.launchers.here import HereLauncher
from slurm_rl.plan.job import JobPlan


class MachineLauncher(HereLauncher):
    """See `Launcher`."""

    def check(self, plan: JobPlan) -> tuple[JobPlan, list[str]]:
        raise ConfigError(
            "a run on machines without Slurm starts on each of them",
            seen=f"submit, with cluster.launcher={plan.launcher}",
            action="python -m slurm_rl node and the same overrides, on every machine",
        )
