"""Optional features, one package each. This file contains the hook of the node checks.

Hooks run in the controller, in its only thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from slurm_rl.config.user_files.load import load_function

if TYPE_CHECKING:
    from slurm_rl.plan.job import JobPlan
    from slurm_rl.run_dir.run_dir import AttemptDir, RunDir


@dataclass(frozen=True)
class Exclusion:
    """Nodes that the next start of a job must not get."""

    names: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Bad nodes that are not excluded, with the reason."""


@dataclass(frozen=True)
class NodeVerdicts:
    """Result of the checks before an attempt."""

    unfit: dict[str, str] = field(default_factory=dict)
    """Nodes that must not run the attempt, with the reason."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of the event preflight/passed."""


class NodeChecks(Protocol):
    """Checks of the nodes of one run; opened once per start of the controller."""

    def remembered(self, hosts: Sequence[str]) -> dict[str, str]:
        """Return those of the nodes that earlier attempts or runs found bad, with the reason."""

    def before_attempt(self, attempt: AttemptDir, hosts: Sequence[str], env: Mapping[str, str]) -> NodeVerdicts:
        """Check all nodes. Raises BringUpError if the cause is not a single node, or by policy."""

    def exclusion(self, hosts: Sequence[str] = ()) -> Exclusion:
        """Choose the nodes to exclude at the next start, when the job has `hosts` now. Raises SlurmRLError."""


def open_node_checks(run: RunDir, plan: JobPlan) -> NodeChecks:
    """Return the checks of the run's nodes; imports the health plugin, so that the core does not."""
    return cast("NodeChecks", load_function("slurm_rl.plugins.health.memory:HealthChecks")(run, plan))
