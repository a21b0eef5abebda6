"""What the controller asks of nodes before an attempt, as the plan has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slurm_rl.config.launchers import LAUNCHERS

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


def describe_preflight(launcher: str, said: PreflightPlan) -> str:
    """What nodes are asked, in a line."""
    if not LAUNCHERS[launcher].is_queue:
        return f"none with launcher {launcher}: Slurm's nodes alone are checked; see python -m slurm_rl doctor"
    if said.level == "off":
        return "off: no node is checked before an attempt"
    return f"{said.level}, {said.budget_s:g} s; bad nodes stay out: {said.site_dir or 'nodes.jsonl'}"
