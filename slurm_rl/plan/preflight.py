"""Node checks before an attempt, as part of the plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slurm_rl.config.launchers import LAUNCHERS

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig


@dataclass(frozen=True)
class PreflightPlan:
    """Settings of config/preflight.py."""

    level: str = "quick"
    on_failure: dict[str, str] = field(default_factory=dict)
    """Check -> exclude, warn or refuse; exclude if missing."""
    max_excluded_share: float = 0.1
    site_dir: str | None = None
    """Folder shared by all runs of the site."""


def build_preflight(config: RunConfig) -> PreflightPlan:
    own = config.preflight
    return PreflightPlan(own.level, dict(own.on_failure), own.max_excluded_share, config.cluster.site_dir)


def describe_preflight(launcher: str, plan: PreflightPlan) -> str:
    """Return the checks in one line."""
    if not LAUNCHERS[launcher].is_queue:
        return f"none with launcher {launcher}: only nodes of Slurm are checked; see python -m slurm_rl doctor"
    if plan.level == "off":
        return "off: no node is checked before an attempt"
    return f"{plan.level}; bad nodes stay out: {plan.site_dir or 'nodes.jsonl'}"
