"""What the controller asks of nodes before an attempt, as the plan has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig


@dataclass(frozen=True)
class PreflightPlan:
    """See config/preflight.py."""

    level: str = "quick"
    policy: dict[str, str] = field(default_factory=dict)
    """Check -> exclude, warn or refuse; exclude of those that are not here."""
    budget_s: float = 15.0
    max_excluded_share: float = 0.1
    site_dir: str | None = None
    """Folder that all runs of the site share."""

    @staticmethod
    def from_json(tree: dict[str, Any]) -> PreflightPlan:
        return PreflightPlan(**tree)


def build_preflight(config: RunConfig) -> PreflightPlan:
    said = config.preflight
    return PreflightPlan(said.level, dict(said.policy), said.budget_s, said.max_excluded_share, config.cluster.site_dir)
