"""Health of nodes: preflight before an attempt, memory of bad nodes, and the commands `doctor` and `nodes`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from slurm_rl.plan.job import JobPlan
    from slurm_rl.plugins import NodeChecks
    from slurm_rl.run_dir.run_dir import RunDir


class HealthPlugin:
    """See `Plugin`."""

    commands: ClassVar[Mapping[str, str]] = {"doctor": "slurm_rl.cli.doctor:run", "nodes": "slurm_rl.cli.nodes:run"}

    def before_attempt(self, run: RunDir, plan: JobPlan) -> NodeChecks:
        from slurm_rl.plugins.health.memory import HealthChecks

        return HealthChecks(run, plan)


PLUGIN = HealthPlugin()
